"""The conformance suite: what a backend must do, level by level."""
