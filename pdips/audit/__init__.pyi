"""The public names of ``pdips.audit``, each imported when it is first used."""

from pdips.audit.findings import Finding as Finding
from pdips.audit.findings import audit as audit
from pdips.audit.findings import audit_cases as audit_cases
from pdips.audit.findings import overspending as overspending
from pdips.audit.findings import registered_cases as registered_cases
from pdips.audit.findings import worst_by_pair as worst_by_pair
from pdips.audit.neighbour_pairs import Case as Case
from pdips.audit.neighbour_pairs import Pair as Pair
from pdips.audit.path_loss import PathLoss as PathLoss
from pdips.audit.path_loss import StepLoss as StepLoss
from pdips.audit.path_loss import losses as losses
from pdips.audit.postprocessing import (
    PostprocessingCertificate as PostprocessingCertificate,
)
from pdips.audit.postprocessing import certify_postprocessing as certify_postprocessing
from pdips.registry import AUDITS as AUDITS
