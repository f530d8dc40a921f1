"""Schemas, tables and their codes."""
