"""The body of PATCH /admin/settings."""

import msgspec


class SettingsChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is not given stays as it is. See `EngineConfig` for what each means."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    scheduling_policy: str | None = None
