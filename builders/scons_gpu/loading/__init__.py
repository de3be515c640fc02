"""What a build made, for programs that run it: kernels of a manifest, in Python and embedded in C++."""
