"""Headlab: a small translation trainer for people who study multi-head attention."""

__version__ = "0.1.0"
