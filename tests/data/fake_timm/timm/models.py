"""What the stand-in no longer calls by these names, and what it calls it now."""


def get_deprecated_models() -> dict[str, str | None]:
    return {"old_net": "tiny_net", "lost_net": None}
