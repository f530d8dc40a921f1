"""The public names of ``pdips.audit``, each imported when it is first used."""

from pdips.audit.findings import Finding as Finding
from pdips.audit.findings import audit as audit
from pdips.audit.findings import audit_cases as audit_cases
from pdips.audit.findings import overspending as overspending
from pdips.audit.findings import registered_cases as registered_cases
from pdips.audit.findings import worst_by_pair as worst_by_pair
from pdips.audit.neighbour_pairs import Case as Case
from pdips.audit.neighbour_pairs import Pair as Pair
from pdips.registry import AUDITS as AUDITS
