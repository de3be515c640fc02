"""The processes in which libraries run that may take their process along: LLVM, and NVIDIA's compilers."""
