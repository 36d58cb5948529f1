"""The refusals of storage in a sentence each, with what to do about it.

Storage may repeat credentials in its answers (S3 does so with the token that has expired), and an endpoint may hold a
password: of an answer, its code and its message alone are said.
"""

from __future__ import annotations

import html
import re

EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestExpired"))
CREDENTIALS = frozenset((
    "AccessDenied", "AllAccessDisabled", "AuthenticationFailed", "AuthorizationFailure", "InvalidAccessKeyId",
    "InvalidSecurity", "SignatureDoesNotMatch",
))  # fmt: skip
REGION = frozenset((
    "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "IncorrectEndpoint", "PermanentRedirect",
    "TemporaryRedirect",
))  # fmt: skip
BUCKET = frozenset(("ContainerNotFound", "NoSuchBucket"))
BUSY = frozenset(("InternalError", "OperationAborted", "ServerBusy", "ServiceUnavailable", "SlowDown"))

RENEW = "renew the credentials"
ALLOW = "look at the credentials and at what they may do"
PLACE = "name the bucket's region (AWS_REGION) or its endpoint (AWS_ENDPOINT_URL)"
WAIT = "the storage is busy or ill: wait"
CURES = (
    (EXPIRED, RENEW), (CREDENTIALS, ALLOW), (REGION, PLACE), (BUCKET, "make the bucket, or mend the URL"), (BUSY, WAIT),
    (frozenset(("RequestTimeTooSkewed",)), "set this machine's clock"),
)  # fmt: skip
MOST = 300
"""The most characters of a cause."""


def code(text: str) -> str:
    """Return the code of the storage's answer, such as ``NoSuchBucket``, empty if there is none."""
    found = re.search(r"<Code>(\w{1,80})</Code>", text)
    return found[1] if found else ""


def explained(text: str, refused: bool = False) -> str:
    """Return what failed, and what to do, from the text of obstore's error.

    Args:
        text: all of it.
        refused: True if obstore takes it for a refusal of credentials.
    """
    said = code(text)
    status = re.search(r"status code: (\d{3}[A-Za-z -]*)", text)
    if said:
        message = re.search(r"<Message>([^<]*)</Message>", text)
        cause = f"{said}: {html.unescape(' '.join(message[1].split()))}" if message and message[1].strip() else said
    elif status:
        cause = f"the storage answered {status[1].strip()}"
    elif re.search(r"\bTimedOut\b|kind: Timeout|operation timed out", text):
        cause = "no answer came in time"
    else:
        cause = text.strip().splitlines()[0] if text.strip() else "no reason was given"
    cause = re.sub(r"(//[^\s?]*)\?[^\s)]*", r"\1?...", cause)  # a signature, or Azure's token
    cause = re.sub(r"//\S*@", "//...@", cause)[:MOST].rstrip(".")
    return f"{cause}; {_cure(said, status[1][:3] if status else '', text, refused)}, and try again"


def _cure(said: str, status: str, text: str, refused: bool) -> str:
    for codes, cure in CURES:
        if said in codes:
            return cure
    if "Received redirect without LOCATION" in text:
        return PLACE
    if refused or status in ("401", "403"):
        return ALLOW
    if status == "400":  # an answer without a reason: that of a HEAD
        return "look at the credentials, the region and the endpoint"
    if status in ("500", "503"):
        return WAIT
    return "look at the network and the endpoint"


def is_of_credentials(text: str, refused: bool = False) -> bool:
    """Tell whether newer credentials may mend it."""
    return refused or code(text) in CREDENTIALS | EXPIRED or bool(re.search(r"status code: 40[013]\b", text))
