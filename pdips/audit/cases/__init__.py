"""The pairs of tables that each mechanism is audited on."""
