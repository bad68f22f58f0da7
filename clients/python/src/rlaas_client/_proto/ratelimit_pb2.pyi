import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Algorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALGORITHM_UNSPECIFIED: _ClassVar[Algorithm]
    FIXED_WINDOW: _ClassVar[Algorithm]
    SLIDING_WINDOW_LOG: _ClassVar[Algorithm]
    SLIDING_WINDOW_COUNTER: _ClassVar[Algorithm]
    TOKEN_BUCKET: _ClassVar[Algorithm]
    LEAKY_BUCKET: _ClassVar[Algorithm]
    GCRA: _ClassVar[Algorithm]
    CONCURRENCY: _ClassVar[Algorithm]

class UnmatchedPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNMATCHED_POLICY_UNSPECIFIED: _ClassVar[UnmatchedPolicy]
    UNMATCHED_POLICY_DEFAULT_RULE: _ClassVar[UnmatchedPolicy]
    UNMATCHED_POLICY_ALLOW: _ClassVar[UnmatchedPolicy]
    UNMATCHED_POLICY_DENY: _ClassVar[UnmatchedPolicy]

class OnStoreFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_STORE_FAILURE_UNSPECIFIED: _ClassVar[OnStoreFailure]
    ON_STORE_FAILURE_ERROR: _ClassVar[OnStoreFailure]
    ON_STORE_FAILURE_ALLOW: _ClassVar[OnStoreFailure]
    ON_STORE_FAILURE_DENY: _ClassVar[OnStoreFailure]
    ON_STORE_FAILURE_LOCAL: _ClassVar[OnStoreFailure]

class RuleMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RULE_MODE_UNSPECIFIED: _ClassVar[RuleMode]
    RULE_MODE_ENFORCE: _ClassVar[RuleMode]
    RULE_MODE_SHADOW: _ClassVar[RuleMode]
    RULE_MODE_OFF: _ClassVar[RuleMode]

class WindowFrom(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WINDOW_FROM_UNSPECIFIED: _ClassVar[WindowFrom]
    WINDOW_FROM_EPOCH: _ClassVar[WindowFrom]
    WINDOW_FROM_FIRST_USE: _ClassVar[WindowFrom]

class OnChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_CHANGE_UNSPECIFIED: _ClassVar[OnChange]
    ON_CHANGE_KEEP_USED: _ClassVar[OnChange]
    ON_CHANGE_KEEP_LEFT: _ClassVar[OnChange]
    ON_CHANGE_SCALE: _ClassVar[OnChange]
    ON_CHANGE_RESET: _ClassVar[OnChange]
ALGORITHM_UNSPECIFIED: Algorithm
FIXED_WINDOW: Algorithm
SLIDING_WINDOW_LOG: Algorithm
SLIDING_WINDOW_COUNTER: Algorithm
TOKEN_BUCKET: Algorithm
LEAKY_BUCKET: Algorithm
GCRA: Algorithm
CONCURRENCY: Algorithm
UNMATCHED_POLICY_UNSPECIFIED: UnmatchedPolicy
UNMATCHED_POLICY_DEFAULT_RULE: UnmatchedPolicy
UNMATCHED_POLICY_ALLOW: UnmatchedPolicy
UNMATCHED_POLICY_DENY: UnmatchedPolicy
ON_STORE_FAILURE_UNSPECIFIED: OnStoreFailure
ON_STORE_FAILURE_ERROR: OnStoreFailure
ON_STORE_FAILURE_ALLOW: OnStoreFailure
ON_STORE_FAILURE_DENY: OnStoreFailure
ON_STORE_FAILURE_LOCAL: OnStoreFailure
RULE_MODE_UNSPECIFIED: RuleMode
RULE_MODE_ENFORCE: RuleMode
RULE_MODE_SHADOW: RuleMode
RULE_MODE_OFF: RuleMode
WINDOW_FROM_UNSPECIFIED: WindowFrom
WINDOW_FROM_EPOCH: WindowFrom
WINDOW_FROM_FIRST_USE: WindowFrom
ON_CHANGE_UNSPECIFIED: OnChange
ON_CHANGE_KEEP_USED: OnChange
ON_CHANGE_KEEP_LEFT: OnChange
ON_CHANGE_SCALE: OnChange
ON_CHANGE_RESET: OnChange

class CheckRequest(_message.Message):
    __slots__ = ("user_id", "resource", "attributes", "cost", "dry_run", "request_id", "costs", "at_least")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    resource: str
    attributes: _containers.ScalarMap[str, str]
    cost: int
    dry_run: bool
    request_id: str
    costs: _containers.ScalarMap[str, int]
    at_least: int
    def __init__(self, user_id: _Optional[str] = ..., resource: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., cost: _Optional[int] = ..., dry_run: bool = ..., request_id: _Optional[str] = ..., costs: _Optional[_Mapping[str, int]] = ..., at_least: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: CheckRequest
    def __init__(self, request: _Optional[_Union[CheckRequest, _Mapping]] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("verdict", "uncounted")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    verdict: CheckResponse
    uncounted: int
    def __init__(self, verdict: _Optional[_Union[CheckResponse, _Mapping]] = ..., uncounted: _Optional[int] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("allowed", "current_count", "ttl", "limit", "remaining", "retry_after", "reset_after", "rule", "algorithm", "source", "delay", "decisions", "reason", "near_limit", "replayed", "reset_at", "taken")
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SOURCE_UNSPECIFIED: _ClassVar[CheckResponse.Source]
        STORE: _ClassVar[CheckResponse.Source]
        DENY_CACHE: _ClassVar[CheckResponse.Source]
        FAIL_OPEN: _ClassVar[CheckResponse.Source]
        LOCAL_FALLBACK: _ClassVar[CheckResponse.Source]
        FAIL_CLOSED: _ClassVar[CheckResponse.Source]
    SOURCE_UNSPECIFIED: CheckResponse.Source
    STORE: CheckResponse.Source
    DENY_CACHE: CheckResponse.Source
    FAIL_OPEN: CheckResponse.Source
    LOCAL_FALLBACK: CheckResponse.Source
    FAIL_CLOSED: CheckResponse.Source
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[CheckResponse.Reason]
        WITHIN_LIMIT: _ClassVar[CheckResponse.Reason]
        OVER_LIMIT: _ClassVar[CheckResponse.Reason]
        COST_ABOVE_LIMIT: _ClassVar[CheckResponse.Reason]
        BANNED: _ClassVar[CheckResponse.Reason]
        UNLIMITED: _ClassVar[CheckResponse.Reason]
        STORE_UNAVAILABLE: _ClassVar[CheckResponse.Reason]
        NO_RULE: _ClassVar[CheckResponse.Reason]
        HELD: _ClassVar[CheckResponse.Reason]
    REASON_UNSPECIFIED: CheckResponse.Reason
    WITHIN_LIMIT: CheckResponse.Reason
    OVER_LIMIT: CheckResponse.Reason
    COST_ABOVE_LIMIT: CheckResponse.Reason
    BANNED: CheckResponse.Reason
    UNLIMITED: CheckResponse.Reason
    STORE_UNAVAILABLE: CheckResponse.Reason
    NO_RULE: CheckResponse.Reason
    HELD: CheckResponse.Reason
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    RESET_AFTER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEAR_LIMIT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    current_count: int
    ttl: int
    limit: int
    remaining: int
    retry_after: _duration_pb2.Duration
    reset_after: _duration_pb2.Duration
    rule: str
    algorithm: Algorithm
    source: CheckResponse.Source
    delay: _duration_pb2.Duration
    decisions: _containers.RepeatedCompositeFieldContainer[RuleDecision]
    reason: CheckResponse.Reason
    near_limit: bool
    replayed: bool
    reset_at: _timestamp_pb2.Timestamp
    taken: int
    def __init__(self, allowed: bool = ..., current_count: _Optional[int] = ..., ttl: _Optional[int] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reset_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rule: _Optional[str] = ..., algorithm: _Optional[_Union[Algorithm, str]] = ..., source: _Optional[_Union[CheckResponse.Source, str]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[RuleDecision, _Mapping]]] = ..., reason: _Optional[_Union[CheckResponse.Reason, str]] = ..., near_limit: bool = ..., replayed: bool = ..., reset_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., taken: _Optional[int] = ...) -> None: ...

class CheckBatchRequest(_message.Message):
    __slots__ = ("requests", "decisions_wanted")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_WANTED_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[CheckRequest]
    decisions_wanted: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[CheckRequest, _Mapping]]] = ..., decisions_wanted: bool = ...) -> None: ...

class CheckBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CheckResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CheckResult, _Mapping]]] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: CheckResponse
    error: _status_pb2.Status
    def __init__(self, response: _Optional[_Union[CheckResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class RuleDecision(_message.Message):
    __slots__ = ("rule", "algorithm", "allowed", "current_count", "ttl", "limit", "remaining", "retry_after", "reset_after", "delay", "reason", "shadow", "near_limit", "reset_at", "window", "held")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    RESET_AFTER_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    NEAR_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    rule: str
    algorithm: Algorithm
    allowed: bool
    current_count: int
    ttl: int
    limit: int
    remaining: int
    retry_after: _duration_pb2.Duration
    reset_after: _duration_pb2.Duration
    delay: _duration_pb2.Duration
    reason: CheckResponse.Reason
    shadow: bool
    near_limit: bool
    reset_at: _timestamp_pb2.Timestamp
    window: _duration_pb2.Duration
    held: int
    def __init__(self, rule: _Optional[str] = ..., algorithm: _Optional[_Union[Algorithm, str]] = ..., allowed: bool = ..., current_count: _Optional[int] = ..., ttl: _Optional[int] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reset_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[_Union[CheckResponse.Reason, str]] = ..., shadow: bool = ..., near_limit: bool = ..., reset_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., held: _Optional[int] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("default_rule", "rules", "revision", "store", "version", "next_page_token", "unmatched", "catalogue_revision")
    DEFAULT_RULE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_REVISION_FIELD_NUMBER: _ClassVar[int]
    default_rule: Rule
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    revision: int
    store: str
    version: str
    next_page_token: str
    unmatched: UnmatchedPolicy
    catalogue_revision: int
    def __init__(self, default_rule: _Optional[_Union[Rule, _Mapping]] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., revision: _Optional[int] = ..., store: _Optional[str] = ..., version: _Optional[str] = ..., next_page_token: _Optional[str] = ..., unmatched: _Optional[_Union[UnmatchedPolicy, str]] = ..., catalogue_revision: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("name", "algorithm", "max_requests", "window", "fail_open", "burst", "shadow", "matchers", "key_by", "overrides", "on_store_failure", "local_share_ppm", "breaker_opens_rule", "mode", "mode_ends_at", "enforce_ppm", "on_change", "near_limit_ppm", "max_debt", "overridable", "calendar", "descriptor_rule", "origin", "cost", "reservable", "hold", "max_holds", "hold_share_ppm", "notify_at_ppm", "limit_from", "post_paid", "window_from")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    FAIL_OPEN_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    KEY_BY_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    ON_STORE_FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SHARE_PPM_FIELD_NUMBER: _ClassVar[int]
    BREAKER_OPENS_RULE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_PPM_FIELD_NUMBER: _ClassVar[int]
    ON_CHANGE_FIELD_NUMBER: _ClassVar[int]
    NEAR_LIMIT_PPM_FIELD_NUMBER: _ClassVar[int]
    MAX_DEBT_FIELD_NUMBER: _ClassVar[int]
    OVERRIDABLE_FIELD_NUMBER: _ClassVar[int]
    CALENDAR_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_RULE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    RESERVABLE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLDS_FIELD_NUMBER: _ClassVar[int]
    HOLD_SHARE_PPM_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_AT_PPM_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FROM_FIELD_NUMBER: _ClassVar[int]
    POST_PAID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FROM_FIELD_NUMBER: _ClassVar[int]
    name: str
    algorithm: Algorithm
    max_requests: int
    window: _duration_pb2.Duration
    fail_open: bool
    burst: int
    shadow: bool
    matchers: _containers.RepeatedCompositeFieldContainer[PartMatcher]
    key_by: _containers.RepeatedScalarFieldContainer[str]
    overrides: _containers.RepeatedCompositeFieldContainer[RuleOverride]
    on_store_failure: OnStoreFailure
    local_share_ppm: int
    breaker_opens_rule: bool
    mode: RuleMode
    mode_ends_at: _timestamp_pb2.Timestamp
    enforce_ppm: int
    on_change: OnChange
    near_limit_ppm: int
    max_debt: int
    overridable: bool
    calendar: CalendarWindow
    descriptor_rule: DescriptorRule
    origin: RuleOrigin
    cost: int
    reservable: bool
    hold: _duration_pb2.Duration
    max_holds: int
    hold_share_ppm: int
    notify_at_ppm: _containers.RepeatedScalarFieldContainer[int]
    limit_from: str
    post_paid: bool
    window_from: WindowFrom
    def __init__(self, name: _Optional[str] = ..., algorithm: _Optional[_Union[Algorithm, str]] = ..., max_requests: _Optional[int] = ..., window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., fail_open: bool = ..., burst: _Optional[int] = ..., shadow: bool = ..., matchers: _Optional[_Iterable[_Union[PartMatcher, _Mapping]]] = ..., key_by: _Optional[_Iterable[str]] = ..., overrides: _Optional[_Iterable[_Union[RuleOverride, _Mapping]]] = ..., on_store_failure: _Optional[_Union[OnStoreFailure, str]] = ..., local_share_ppm: _Optional[int] = ..., breaker_opens_rule: bool = ..., mode: _Optional[_Union[RuleMode, str]] = ..., mode_ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., enforce_ppm: _Optional[int] = ..., on_change: _Optional[_Union[OnChange, str]] = ..., near_limit_ppm: _Optional[int] = ..., max_debt: _Optional[int] = ..., overridable: bool = ..., calendar: _Optional[_Union[CalendarWindow, _Mapping]] = ..., descriptor_rule: _Optional[_Union[DescriptorRule, _Mapping]] = ..., origin: _Optional[_Union[RuleOrigin, _Mapping]] = ..., cost: _Optional[int] = ..., reservable: bool = ..., hold: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_holds: _Optional[int] = ..., hold_share_ppm: _Optional[int] = ..., notify_at_ppm: _Optional[_Iterable[int]] = ..., limit_from: _Optional[str] = ..., post_paid: bool = ..., window_from: _Optional[_Union[WindowFrom, str]] = ...) -> None: ...

class CalendarWindow(_message.Message):
    __slots__ = ("unit", "zone", "anchor", "anchor_from")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIT_UNSPECIFIED: _ClassVar[CalendarWindow.Unit]
        DAY: _ClassVar[CalendarWindow.Unit]
        WEEK: _ClassVar[CalendarWindow.Unit]
        MONTH: _ClassVar[CalendarWindow.Unit]
        QUARTER: _ClassVar[CalendarWindow.Unit]
        YEAR: _ClassVar[CalendarWindow.Unit]
    UNIT_UNSPECIFIED: CalendarWindow.Unit
    DAY: CalendarWindow.Unit
    WEEK: CalendarWindow.Unit
    MONTH: CalendarWindow.Unit
    QUARTER: CalendarWindow.Unit
    YEAR: CalendarWindow.Unit
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FROM_FIELD_NUMBER: _ClassVar[int]
    unit: CalendarWindow.Unit
    zone: str
    anchor: int
    anchor_from: str
    def __init__(self, unit: _Optional[_Union[CalendarWindow.Unit, str]] = ..., zone: _Optional[str] = ..., anchor: _Optional[int] = ..., anchor_from: _Optional[str] = ...) -> None: ...

class RuleOrigin(_message.Message):
    __slots__ = ("kind", "source", "revision")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RuleOrigin.Kind]
        KIND_BUILT_IN: _ClassVar[RuleOrigin.Kind]
        KIND_FILE: _ClassVar[RuleOrigin.Kind]
        KIND_ENVOY_FILE: _ClassVar[RuleOrigin.Kind]
        KIND_RUN_TIME: _ClassVar[RuleOrigin.Kind]
    KIND_UNSPECIFIED: RuleOrigin.Kind
    KIND_BUILT_IN: RuleOrigin.Kind
    KIND_FILE: RuleOrigin.Kind
    KIND_ENVOY_FILE: RuleOrigin.Kind
    KIND_RUN_TIME: RuleOrigin.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: RuleOrigin.Kind
    source: str
    revision: int
    def __init__(self, kind: _Optional[_Union[RuleOrigin.Kind, str]] = ..., source: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class PartMatcher(_message.Message):
    __slots__ = ("part", "any_of")
    PART_FIELD_NUMBER: _ClassVar[int]
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    part: str
    any_of: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, part: _Optional[str] = ..., any_of: _Optional[_Iterable[str]] = ...) -> None: ...

class RuleOverride(_message.Message):
    __slots__ = ("matchers", "grant", "headroom_ppm")
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_PPM_FIELD_NUMBER: _ClassVar[int]
    matchers: _containers.RepeatedCompositeFieldContainer[PartMatcher]
    grant: Grant
    headroom_ppm: int
    def __init__(self, matchers: _Optional[_Iterable[_Union[PartMatcher, _Mapping]]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., headroom_ppm: _Optional[int] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("limit", "unlimited", "banned", "burst")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    limit: int
    unlimited: bool
    banned: bool
    burst: int
    def __init__(self, limit: _Optional[int] = ..., unlimited: bool = ..., banned: bool = ..., burst: _Optional[int] = ...) -> None: ...

class DescriptorRule(_message.Message):
    __slots__ = ("domain", "path", "limit_name", "replaces", "quota", "post_paid", "detailed_metric")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    POST_PAID_FIELD_NUMBER: _ClassVar[int]
    DETAILED_METRIC_FIELD_NUMBER: _ClassVar[int]
    domain: str
    path: _containers.RepeatedCompositeFieldContainer[DescriptorStep]
    limit_name: str
    replaces: _containers.RepeatedScalarFieldContainer[str]
    quota: bool
    post_paid: bool
    detailed_metric: bool
    def __init__(self, domain: _Optional[str] = ..., path: _Optional[_Iterable[_Union[DescriptorStep, _Mapping]]] = ..., limit_name: _Optional[str] = ..., replaces: _Optional[_Iterable[str]] = ..., quota: bool = ..., post_paid: bool = ..., detailed_metric: bool = ...) -> None: ...

class DescriptorStep(_message.Message):
    __slots__ = ("key", "value", "share", "value_to_metric")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    VALUE_TO_METRIC_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    share: bool
    value_to_metric: bool
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., share: bool = ..., value_to_metric: bool = ...) -> None: ...
