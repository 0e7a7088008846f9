"""Specs of linear and deep VAEs."""
