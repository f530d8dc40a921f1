"""Rules that combine the analyses of several synthetic sets into one. They need the
sets only, so they are public.
"""

from pdips.inference.combine import Combined, combine, mix
from pdips.inference.rules import Rule, Wald, rule_for

__all__ = ["Combined", "Rule", "Wald", "combine", "mix", "rule_for"]
