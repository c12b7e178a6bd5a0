"""Rendered sources to artifacts: compilers behind one interface, and the builder that fills the store with them."""
