"""NVFP4 in torch: casts, contracts, activations, layouts and the layer's reference."""
