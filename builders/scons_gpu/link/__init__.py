"""Objects become images, fatbins and bundles; the manifest."""
