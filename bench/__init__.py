"""Adapters to public benchmark suites. Their code is read from the user's checkout, never copied into this package."""
