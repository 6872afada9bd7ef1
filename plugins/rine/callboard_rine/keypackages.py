"""Read an RFC 9420 key package as somebody who wants to add its owner would.

rine-mls hands out key packages as opaque bytes; whether one is still good is the question that `kp_liveness`
asks. Only the fields needed for that are kept. Section numbers are RFC 9420's.
"""

import hashlib
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from callboard import CallboardError

MLS_10 = 1
"""ProtocolVersion mls10 (section 6)."""
WIRE_FORMAT_KEY_PACKAGE = 5
"""WireFormat mls_key_package (section 6)."""
CIPHER_SUITE = 1
"""MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519 (section 17.1), rine-mls's CIPHER_SUITE_CLASSICAL."""
FRAME_SIZE = 4
"""Bytes of version and wire format before the KeyPackage itself (section 6)."""
LIFETIME = struct.Struct(">QQ")
"""not_before and not_after, seconds since the epoch (section 7.2)."""
LEAF_LABEL = b"LeafNodeTBS"
"""Signature label of a leaf node (section 7.2)."""
PACKAGE_LABEL = b"KeyPackageTBS"
"""Signature label of a key package (section 10)."""
_BASIC_CREDENTIAL = 1
_LEAF_NODE_SOURCE_KEY_PACKAGE = 1
_NS_PER_S = 1_000_000_000
_CLOCK_SKEW_NS = 3_600 * _NS_PER_S
"""How far ahead another's clock may be, since rine-mls begins a lifetime at once; OpenMLS's margin."""


class KeyPackageError(CallboardError, ValueError):
    """The bytes are no key package that anybody could use."""


@dataclass(frozen=True, slots=True)
class KeyPackage:
    """What a key package says about its owner.

    Attributes:
        identity: The owner, as its basic credential names it; here the installation id.
        not_before_ns: When its lifetime begins, ns since the epoch.
        not_after_ns: When its lifetime ends, ns since the epoch.
        reference: The KeyPackageRef (section 5.2) by which a Welcome and the private part name it.
    """

    identity: bytes
    not_before_ns: int
    not_after_ns: int
    reference: bytes

    def problem(self, owner: bytes, now_ns: int) -> str | None:
        """Say why nobody could add `owner` with this at `now_ns`, or return None if anybody could."""
        if self.identity != owner:
            return "it is another installation's"
        if now_ns >= self.not_after_ns:
            return "it has expired"
        if now_ns < self.not_before_ns - _CLOCK_SKEW_NS:
            return "it is not valid yet"
        return None


class Reader:
    """A cursor over the presentation language of section 2.1."""

    def __init__(self, data: bytes) -> None:
        """Start at the beginning of `data`."""
        self.data = data
        self.offset = 0

    def uint(self, size: int) -> int:
        """Read an unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def vector(self) -> bytes:
        """Read a variable-size vector: two bits give the size of its length (section 2.1.2)."""
        prefix = self.uint(1)
        extra = (1 << (prefix >> 6)) - 1
        if extra > 3:
            raise KeyPackageError("key package has an invalid vector length")
        return self.take((prefix & 0x3F) << (8 * extra) | self.uint(extra))

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        end = self.offset + size
        if end > len(self.data):
            raise KeyPackageError("key package ends early")
        taken, self.offset = self.data[self.offset : end], end
        return taken


def encode_vector(data: bytes) -> bytes:
    """Return `data` as a variable-size vector (section 2.1.2)."""
    for bits, size in ((0, 1), (1, 2), (2, 4)):
        if len(data) < 1 << (8 * size - 2):
            return (len(data) | bits << (8 * size - 2)).to_bytes(size, "big") + data
    raise ValueError("longer than any MLS vector")


def signed_content(label: bytes, content: bytes) -> bytes:
    """Return the SignContent that a signature covers (section 5.1.2)."""
    return encode_vector(b"MLS 1.0 " + label) + encode_vector(content)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a framed key package begin, and those that are needed as they are."""

    leaf: int
    lifetime: int
    leaf_signature: int
    extensions: int
    signature: int
    signature_key: bytes
    identity: bytes


def lay_out(message: bytes) -> Layout:
    """Find the parts of a key package in its MLSMessage frame (sections 6, 7.2 and 10).

    Raises:
        KeyPackageError: It is malformed, or of another version, cipher suite or kind.
    """
    reader = Reader(message)
    if (reader.uint(2), reader.uint(2)) != (MLS_10, WIRE_FORMAT_KEY_PACKAGE):
        raise KeyPackageError("not an MLS 1.0 key package")
    if (reader.uint(2), reader.uint(2)) != (MLS_10, CIPHER_SUITE):
        raise KeyPackageError("key package is of another version or cipher suite")
    reader.vector()  # init_key
    leaf = reader.offset
    reader.vector()  # encryption_key
    signature_key = reader.vector()
    if reader.uint(2) != _BASIC_CREDENTIAL:
        raise KeyPackageError("key package has no basic credential")
    identity = reader.vector()
    for _ in range(5):  # capabilities: versions, cipher suites, extensions, proposals, credentials
        reader.vector()
    if reader.uint(1) != _LEAF_NODE_SOURCE_KEY_PACKAGE:
        raise KeyPackageError("key package has a leaf node of another kind")
    lifetime = reader.offset
    reader.take(LIFETIME.size)
    reader.vector()  # leaf node extensions
    leaf_signature = reader.offset
    reader.vector()
    extensions = reader.offset
    reader.vector()
    signature = reader.offset
    reader.vector()
    if reader.offset != len(message):
        raise KeyPackageError("key package has trailing bytes")
    return Layout(leaf, lifetime, leaf_signature, extensions, signature, signature_key, identity)


def read_key_package(message: bytes) -> KeyPackage:
    """Read a key package in its MLSMessage frame and verify its signatures.

    The lifetime is not compared with a clock: that is the caller's.

    Raises:
        KeyPackageError: It is malformed, of another kind, or a signature is wrong.
    """
    at = lay_out(message)
    for label, tbs, signature in (
        (LEAF_LABEL, message[at.leaf : at.leaf_signature], message[at.leaf_signature :]),
        (PACKAGE_LABEL, message[FRAME_SIZE : at.signature], message[at.signature :]),
    ):
        _verify(at.signature_key, label, tbs, Reader(signature).vector())
    not_before_s, not_after_s = LIFETIME.unpack_from(message, at.lifetime)
    return KeyPackage(
        identity=at.identity,
        not_before_ns=not_before_s * _NS_PER_S,
        not_after_ns=not_after_s * _NS_PER_S,
        reference=_reference(message[FRAME_SIZE:]),
    )


def _verify(public_key: bytes, label: bytes, content: bytes, signature: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed_content(label, content))
    except (InvalidSignature, ValueError):
        raise KeyPackageError(f"key package has a wrong {label.decode()} signature") from None


def _reference(key_package: bytes) -> bytes:
    """Return RefHash("MLS 1.0 KeyPackage Reference", key_package) of section 5.2, SHA-256 in this suite."""
    label = encode_vector(b"MLS 1.0 KeyPackage Reference")
    return hashlib.sha256(label + encode_vector(key_package)).digest()
