"""A unit becomes PTX."""
