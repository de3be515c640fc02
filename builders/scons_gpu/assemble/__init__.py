"""PTX becomes objects."""
