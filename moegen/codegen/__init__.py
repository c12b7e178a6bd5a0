"""Planning and rendering: from a LayerSpec to pipelines, variants and readable source."""
