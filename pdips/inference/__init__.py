"""Rules that combine the analyses of several synthetic sets into one. They need the sets only, so they are public."""

from pdips.inference.combine import combine
from pdips.inference.combining_rule import rule_for
from pdips.inference.mixing import mix
from pdips.inference.pooled import Combined
from pdips.inference.rules import Rule
from pdips.inference.wald import Wald

__all__ = ["Combined", "Rule", "Wald", "combine", "mix", "rule_for"]
