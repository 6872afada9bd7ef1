"""Make a key package that ran out in the past, which rine-mls cannot: its lifetimes are fixed at 365 days.

For the demo and the tests, which put one into the directory to see it found and replaced.
"""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .keypackages import (
    FRAME_SIZE,
    LEAF_LABEL,
    LIFETIME,
    PACKAGE_LABEL,
    encode_vector,
    lay_out,
    signed_content,
)

_DAY_S = 86_400


def expired_copy(key_package: bytes, signing_seed: bytes, not_after_s: int) -> bytes:
    """Return the key package with a lifetime that ended at `not_after_s`, properly signed.

    Args:
        key_package: A good one of the same installation, in its MLSMessage frame.
        signing_seed: The installation's Ed25519 seed.
        not_after_s: The end of the lifetime, seconds since the epoch; it began 365 days earlier.

    Raises:
        KeyPackageError: `key_package` is malformed.
    """
    key = Ed25519PrivateKey.from_private_bytes(signing_seed)
    at = lay_out(key_package)

    def signature(label: bytes, content: bytes) -> bytes:
        return encode_vector(key.sign(signed_content(label, content)))

    lifetime = LIFETIME.pack(not_after_s - 365 * _DAY_S, not_after_s)
    leaf = (
        key_package[at.leaf : at.lifetime]
        + lifetime
        + key_package[at.lifetime + LIFETIME.size : at.leaf_signature]
    )
    package = (
        key_package[FRAME_SIZE : at.leaf]
        + leaf
        + signature(LEAF_LABEL, leaf)
        + key_package[at.extensions : at.signature]
    )
    return key_package[:FRAME_SIZE] + package + signature(PACKAGE_LABEL, package)
