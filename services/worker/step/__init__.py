"""Runs steps: applies a plan, launches forward pass, sampling and pooling, and collects what they computed."""
