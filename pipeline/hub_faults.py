"""What went wrong with a dataset of the Hub: whether to wait, how long, and how to say it.

No text of the client or of the server is repeated: such texts can hold request headers, and with
them the token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipeline.errors import HubError

TOKEN = "HF_TOKEN"  # noqa: S105 -- the variable's name
CONFLICT = (409, 412)
"""The Hub answers 412 when the branch is no longer at `parent_commit`, and 409 when it was moved
while the commit was being made."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from: transfers wrap theirs in RuntimeError."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _status(error: BaseException) -> tuple[int | None, Mapping[str, str]]:
    """The HTTP status and headers of the answer at the bottom of it; (None, {}) without one."""
    from huggingface_hub.errors import HfHubHTTPError

    for one in _chain(error):
        if isinstance(one, HfHubHTTPError):
            return one.response.status_code, one.response.headers
    return None, {}


def wait(error: Exception) -> float | None:
    """Seconds that the server asks to wait before another attempt, 0 = does not say.

    None: another attempt would not help.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    status, headers = _status(error)
    if status is not None:
        if status < 500 and status not in (429, *CONFLICT):
            return None
        asked = re.fullmatch(r"([0-9]{1,9})", headers.get("Retry-After", "").strip())
        # The Hub's own: `"api";r=0;t=55`, r requests left in this window, which ends in t seconds.
        asked = asked or re.search(r";r=0;t=([0-9]{1,9})", headers.get("RateLimit", ""))
        return float(asked[1]) + 1.0 if asked else 0.0  # 1 s, since both are whole seconds
    if any(isinstance(one, OfflineModeIsEnabled) for one in _chain(error)):
        return None
    # Refused and cut connections are errors of the HTTP library (httpx in 1.x, httpx2 in 2.x),
    # with which HfHubHTTPError shares a base; an answer cut short may also fail as JSON.
    kinds = (*HfHubHTTPError.__bases__, OSError, RuntimeError)
    return 0.0 if any(isinstance(one, kinds) for one in _chain(error)) else None


def explained(error: Exception, what: str, attempts: int = 1) -> HubError:
    """What went wrong with `what` ("dataset owner/name"), in our words only."""
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    tried = f", {attempts} attempts" if attempts > 1 else ""
    status, _ = _status(error)
    chain = list(_chain(error))
    name = what.rpartition(" ")[2]
    if any(isinstance(one, OfflineModeIsEnabled) for one in chain):
        return HubError(f"{what}: HF_HUB_OFFLINE is set", remedy="unset it to reach the Hub")
    if any(isinstance(one, GatedRepoError) for one in chain):
        return HubError(
            f"{what} is gated, and this token may not read it",
            remedy=f"accept its conditions at https://huggingface.co/datasets/{name}",
        )
    if any(isinstance(one, RepositoryNotFoundError) for one in chain):
        return HubError(
            f"{what} does not exist, or the token in {TOKEN} may not see it",
            remedy=f"make it once: hf repos create {name} --type dataset",
        )
    if any(isinstance(one, RevisionNotFoundError) for one in chain):
        return HubError(f"{what} has no such revision", remedy="look at its branches on the Hub")
    if status == 401:
        return HubError(
            f"{what}: the Hub does not accept the token in {TOKEN} (HTTP 401)",
            remedy="set it to a valid one: https://huggingface.co/settings/tokens",
        )
    if status == 403:
        return HubError(
            f"{what}: the token in {TOKEN} may not do that (HTTP 403)",
            remedy="it needs write access to this dataset: https://huggingface.co/settings/tokens",
        )
    if status in CONFLICT:
        return HubError(
            f"{what}: others changed it each time before this could (HTTP {status}{tried})",
            remedy="nothing is lost; publish again when they are done",
        )
    if status is not None:
        return HubError(
            f"{what}: the Hub answered HTTP {status}{tried}",
            remedy="nothing is lost; repeat it later" if status >= 429 else "",
        )
    return HubError(
        f"{what}: the Hub could not be used ({type(chain[-1]).__name__}{tried})",
        remedy="nothing is lost; see whether the network is there, and repeat it",
    )
