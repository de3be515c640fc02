"""Indexes become a plan: what one module's image for one architecture is made of."""
