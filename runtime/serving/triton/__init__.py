"""Bundles as models of NVIDIA's Triton Inference Server."""
