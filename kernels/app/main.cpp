// Has the GPU scale a vector and fold it, and compares with what the host makes of it. Ends with 0 where they agree, with 1 where
// they do not, and with 2 where there is no GPU to ask.
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "app.h"

int main() {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  Moments found = {};
  const char* complaint = scale_and_shift(values, 0.5f, 1.0f);
  if (!complaint) complaint = moments_of(values, found);
  if (complaint) {
    std::printf("app: %s\n", complaint);
    return 2;
  }
  const float sum = 0.5f * 999 * 1000 / 2 + 1000, largest = 0.5f * 999 + 1;
  const bool right = std::fabs(found.sum - sum) < 1e-3f * sum && found.largest == largest;
  std::printf("app: sum %g, largest %g: %s\n", found.sum, found.largest, right ? "right" : "wrong");
  return right ? 0 : 1;
}
