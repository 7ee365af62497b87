"""Renderers: each turns an `Analysis` into text, JSON or a page, and computes no result of its own."""
