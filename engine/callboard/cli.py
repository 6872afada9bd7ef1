"""placeholder"""


def main() -> None: ...
