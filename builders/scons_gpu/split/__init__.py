"""IR becomes an index and slices."""
