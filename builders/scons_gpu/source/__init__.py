"""A source becomes LLVM IR."""
