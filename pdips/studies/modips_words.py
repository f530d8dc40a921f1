"""What the studies of paper 003 say about MODIPS, and how its targets fare. The figures come from the table."""

from pdips.studies.epsilon_curves import Method

MODIPS = {
    "modips-published": Method(label="MODIPS plug-in, a fifth of epsilon a set (published)", colour=8, dashed=True),
    "modips-plug-in": Method(label="modips, plug-in, sanitized once", colour=4),
    "modips-aware": Method(label="modips, noise-aware, 5 sets", colour=6),
    "modips-aware-many": Method(label="modips, noise-aware, 100 sets", colour=7),
    "modips-posterior": Method(label="modips, noise-aware, published posterior", colour=5),
}
"""Rows of both simulations."""
