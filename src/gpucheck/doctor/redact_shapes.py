"""What looks like a secret, an address or a name, whoever's it is. Patterns and what tells them from the harmless."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

# A name that says that its value is a secret. `tokens` and `tokenizer` are words of the trade.
SECRET_WORD = (
    r"(?:pass(?:word|wd|phrase|code)|secret|credentials?|token(?!s|iz)|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|account[_-]?key|auth[_-]?key|sign(?:ing)?[_-]?key|encryption[_-]?key|authorization|session[_-]?id)"
)
_SECRET_NAME = (
    rf"(?:(?i:[\w.-]{{0,60}}{SECRET_WORD}[\w.-]{{0,60}}|_?auth)|[A-Z][A-Z0-9_]{{0,60}}_(?:KEY|PASS|PWD|PW|PIN|AUTH))"
)
# Quoted to the closing quote, also where the quotes themselves are escaped, else to what ends a word.
_VALUE = (
    r"(?:\\\"(?P<escaped>[^\"\n]+?)\\\"|\"(?P<double>[^\"\n]+)\"|'(?P<single>[^'\n]+)'"
    r"|(?P<bare>[^\s\"'<>,;&)\]}\\]+))"
)
# Said of a secret, and none.
_NO_SECRET = ("none", "null", "true", "false", "yes", "no", "not", "set", "unset", "missing", "required")
# What may stand before one.
_SCHEMES = ("basic", "bearer", "digest", "negotiate", "token")
_SCHEME = rf"(?i:(?:{'|'.join(_SCHEMES)})\s+)?"
# What stands before four numbers with dots that are a version: a sign, or a word of the packages that have such.
_VERSION_BEFORE = re.compile(
    r"(?:[=<>~!]=\s*|\b[a-z]\w*[-_]|\bv|\b(?:version|release|toolkit|cudnn|cublas|cufft|curand|cusolver|cusparse|cupti"
    r"|nvjitlink|nvrtc|nvtx|cuda|nvidia|lib)[\w-]*(?:\s+is)?[\s:=('\"\[]*)$",
    re.IGNORECASE,
)
UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
# Addresses that every machine has.
_EVERYWHERE = ("127.", "0.", "255.255.", "::1", "::")


def _always(match: re.Match[str]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of text to replace: the last named group of the pattern, or all of it where it has none."""

    kind: str
    pattern: re.Pattern[str]
    accept: Callable[[re.Match[str]], bool] = _always


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret: a key of a document, a variable."""
    return re.fullmatch(_SECRET_NAME, name) is not None


def is_version_name(name: str) -> bool:
    """Whether what goes by this name is a version, which may look like an address."""
    return re.search(r"version|release", name, re.IGNORECASE) is not None


def _is_random(match: re.Match[str]) -> bool:
    """Whether a long word is made by a machine: digits among letters, no mangled name of C++ and no UUID."""
    word = match[match.lastgroup or 0]
    if re.search(UUID, word):
        return False
    digits = sum(char.isdigit() for char in word)
    is_mixed = any(char.isupper() for char in word) and any(char.islower() for char in word)
    is_hex = re.fullmatch(r"[0-9a-fA-F]+", word) is not None
    return digits >= 3 and not word.startswith(("_Z", "/")) and (is_mixed or is_hex or digits * 5 >= len(word))


def _is_unnamed_random(match: re.Match[str]) -> bool:
    """The same for a word that nothing near it calls a secret: with letters of both cases, and no path."""
    word = match[match.lastgroup or 0]
    is_mixed = any(char.isupper() for char in word) and any(char.islower() for char in word)
    return is_mixed and _is_random(match) and word.count("/") * 16 <= len(word)


def _has_a_digit(match: re.Match[str]) -> bool:
    return any(char.isdigit() for char in match[match.lastgroup or 0])


def _is_told(match: re.Match[str]) -> bool:
    """Whether what follows `password:` is one."""
    return match[match.lastgroup or 0].lower() not in (*_NO_SECRET, *_SCHEMES)


def _is_encoded(match: re.Match[str]) -> bool:
    """Whether what follows Basic or Token is no word of a sentence."""
    word = match[match.lastgroup or 0]
    return not (word.isalpha() and word[1:].islower())


def _is_no_word(match: re.Match[str]) -> bool:
    """Whether a value that goes by a short name (`pass`, `key`) is a secret: no count, no path and no plain word."""
    word = match[match.lastgroup or 0]
    is_path = word.startswith(("/", "~", ".")) or word[1:3] in (":/", ":\\")
    return not (is_path or word.isalpha() or re.fullmatch(r"[\d.,:%-]+", word) or word.lower() in _NO_SECRET)


def _is_made(match: re.Match[str]) -> bool:
    return _has_a_digit(match) and _is_no_word(match)


def _is_address_4(match: re.Match[str]) -> bool:
    text = match[0]
    parts = text.split(".")
    if any(int(part) > 255 or (part.startswith("0") and part != "0") for part in parts) or text.startswith(_EVERYWHERE):
        return False
    return _VERSION_BEFORE.search(match.string[max(0, match.start() - 48) : match.start()]) is None


def _is_address_6(match: re.Match[str]) -> bool:
    """Whether it is one, and no C++ name (`at::`) or time of day."""
    text = match[0].partition("%")[0]
    if text in _EVERYWHERE or not any(char.isdigit() for char in text):
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _secret(pattern: str, accept: Callable[[re.Match[str]], bool] = _always, flags: int = 0) -> Shape:
    return Shape("secret", re.compile(pattern, flags), accept)


# Prefixes that their makers document so that scanners find them: GitHub, GitLab, Hugging Face, OpenAI and Anthropic,
# Stripe, AWS, Slack, npm, PyPI, Google, NVIDIA, Groq, Replicate, Databricks, DigitalOcean, SendGrid, Docker, Vault and
# others; JSON Web Tokens, public keys of SSH and hashed passwords.
_TOKENS = "|".join(
    (
        r"gh[pousr]_[A-Za-z0-9]{8,}",
        r"github_pat_\w{8,}",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-[\w-]{8,}",
        r"(?:hf|gsk|r8|pplx|xai|tgp|lsv2|sntrys|dckr_pat|dckr_oat|npm|dop_v1|shpat|whsec|api_org|tfp|nfp|glsa|lin_api|rpa"
        r"|ntn|pcsk|sqp|wandb_v1)[_-](?=\w{0,200}\d)\w{8,}",
        r"(?:hf|npm|api_org)_[A-Za-z0-9]{30,}",
        r"(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{8,}",
        r"sk-ant-[\w-]{8,}",
        r"sk-(?=[\w-]{0,200}\d)[\w-]{16,}",
        r"sk-(?:proj|or|svcacct)-[\w-]{16,}",
        r"tskey-[\w-]{8,}",
        r"AT(?:ATT3x|BB)[\w=-]{8,}",
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}",
        r"xox[a-z]-[\w-]{8,}",
        r"xapp-[\w-]{8,}",
        r"pypi-(?=[\w-]{0,200}\d)(?=[\w-]{0,200}[A-Z])[\w-]{12,}",
        r"AIza[\w-]{20,}",
        r"ya29\.[\w.-]{12,}",
        r"GOCSPX-[\w-]{8,}",
        r"nvapi-[\w-]{8,}",
        r"dapi[0-9a-f]{16,}",
        r"SG\.[\w-]{12,}\.[\w-]{12,}",
        r"hvs\.[\w-]{12,}",
        r"AGE-SECRET-KEY-1[A-Z0-9]{8,}",
        r"eyJ[\w-]{6,}(?:\.[\w-]+){0,4}",
        r"AAAA[BCE][A-Za-z0-9+/]{30,}={0,3}",
        r"\$(?:2[aby]|5|6|y|argon2\w*)\$[\w./$,=+-]{16,}",
    )
)

# The first that fits counts, so whole things come before their parts.
SHAPES: tuple[Shape, ...] = (
    _secret(r"-----BEGIN [A-Z0-9 ]+-----[\s\S]*?(?:-----END [A-Z0-9 ]+-----|\Z)"),
    _secret(r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://(?P<it>[^\s/\"'<>]+)(?=@)"),
    _secret(r"(?i:\b(?:set-)?cookie):[ \t]*(?P<it>[^\n<]+)"),
    _secret(r"(?i:\bbearer)\s+(?P<it>[A-Za-z0-9+/._~=-]{8,})"),
    _secret(r"(?i:\b(?:basic|\w{0,20}token|digest|negotiate))\s+(?P<it>[A-Za-z0-9+/._~=-]{8,})", _is_encoded),
    _secret(rf"(?<![A-Za-z0-9])(?P<it>{_TOKENS})"),
    # After the id of one of AWS's keys its secret of forty characters.
    _secret(
        r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,32}(?![A-Z0-9])[^\n]{0,60}?(?<![\w/+])(?P<it>[A-Za-z0-9/+]{40})(?![\w/+])"
    ),
    _secret(rf"(?<![\w-])--(?=\w)[\w-]{{0,40}}(?i:{SECRET_WORD})[\w-]{{0,40}}\s+(?!-){_VALUE}"),
    # What an address holds that is a secret by itself: a signature, a hook's, a channel's of conda.
    _secret(r"[?&](?i:sig|code|key|auth|[\w-]{0,30}signature)=(?P<it>[^\s&\"'<>]{8,})", _has_a_digit),
    _secret(r"hooks\.slack\.com/(?:services|workflows)/(?P<it>[\w/]{8,})"),
    _secret(r"discord(?:app)?\.com/api/webhooks/\d{1,30}/(?P<it>[\w-]{8,})"),
    _secret(r"//[\w.-]{0,60}conda[\w.:-]{0,60}/t/(?P<it>[\w-]{8,})(?=/)", _has_a_digit),
    # Passwords as commands take them.
    _secret(r"(?<!\S)(?:-u|--(?:proxy-)?user)[ =][\"']?[\w.@\\-]{1,60}:(?P<it>[^\s\"'<]+)", _is_no_word),
    _secret(
        r"\b(?:sshpass|mysql\w{0,10}|mariadb|(?:docker|podman|helm|az|oc) login)\b[^\n|;]{0,120}?\s-p ?"
        r"(?P<it>[^\s\"'<]{4,})",
        _is_no_word,
    ),
    _secret(r"\bredis-cli\b[^\n|;]{0,120}?\s-a (?P<it>[^\s\"'<]{4,})"),
    _secret(r"\bpass:(?P<it>[^\s\"'<]{4,})", _is_no_word),
    _secret(r"(?<![\w-])--(?=\w)[\w-]{0,40}(?i:pass|pwd|pw)[ =](?!-)(?P<it>[^\s\"'<>,;&]{4,})", _is_no_word),
    _secret(r"(?<![\w.-])(?i:(?:[\w.-]{0,60}[_.-])?(?:pass|pwd|pw))=(?P<it>[^\s\"'<>,;&)\]}\\]{6,})", _is_no_word),
    _secret(r"(?<![\w.-])[\w.-]{1,60}[_.-]key=(?P<it>[\w+/=.-]{8,})", _is_made),
    _secret(
        r"(?i:\bpass(?:word|wd|phrase))\s+(?i:is\s+|for\s+[\w.@-]{1,60}:?\s+)?(?P<it>[^\s\"'<>,;]{6,})", _has_a_digit
    ),
    _secret(rf"(?<![\w.-]){_SECRET_NAME}\\?[\"']?\s*(?:=>|:=|=|:|%3[dD]|\\u003[dD])\s*{_SCHEME}{_VALUE}", _is_told),
    _secret(
        rf"\b(?i:{SECRET_WORD}|keys?|login|auth)\b[^\n<]{{0,40}}?(?<![\w/+.-])(?P<it>[\w+/-]{{16,}}={{0,2}})(?![\w.])",
        _is_random,
    ),
    _secret(r"(?<![\w/+.~-])(?P<it>[A-Za-z0-9+/_-]{40,}={0,2})(?![\w/.-])", _is_unnamed_random),
    Shape("mail", re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w-]|\.\d)")),
    Shape(
        "serial",
        re.compile(r"(?i:\bserial(?:[ _-]?(?:number|no\.?))?)[\"']?\s*[:=#]\s*[\"']?(?P<it>[A-Za-z0-9-]{6,})"),
        _has_a_digit,
    ),
    Shape("mac", re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5,19}(?![\w:-])")),
)
ADDRESSES: tuple[Shape, ...] = (
    # As Amazon names its machines.
    Shape("address", re.compile(r"(?<![\w-])ip-(?P<it>\d{1,3}(?:-\d{1,3}){3})(?![\w-])")),
    Shape("address", re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\w|\+)"), _is_address_4),
    Shape(
        "address",
        re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4})?(?:%\w+)?(?![\w:])"),
        _is_address_6,
    ),
)
