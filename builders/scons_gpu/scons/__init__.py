"""All that touches SCons."""
