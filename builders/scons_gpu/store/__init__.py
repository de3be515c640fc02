"""The content-addressed store and the build log."""
