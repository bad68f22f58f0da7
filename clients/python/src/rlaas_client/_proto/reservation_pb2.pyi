import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from . import ratelimit_pb2 as _ratelimit_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReserveRequest(_message.Message):
    __slots__ = ("request", "ttl")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    request: _ratelimit_pb2.CheckRequest
    ttl: _duration_pb2.Duration
    def __init__(self, request: _Optional[_Union[_ratelimit_pb2.CheckRequest, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("verdict", "reservation_id", "expires_at")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    verdict: _ratelimit_pb2.CheckResponse
    reservation_id: str
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, verdict: _Optional[_Union[_ratelimit_pb2.CheckResponse, _Mapping]] = ..., reservation_id: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("reservation_id", "cost", "costs", "ttl")
    class CostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    cost: int
    costs: _containers.ScalarMap[str, int]
    ttl: _duration_pb2.Duration
    def __init__(self, reservation_id: _Optional[str] = ..., cost: _Optional[int] = ..., costs: _Optional[_Mapping[str, int]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("verdict", "expires_at")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    verdict: _ratelimit_pb2.CheckResponse
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, verdict: _Optional[_Union[_ratelimit_pb2.CheckResponse, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("reservation_id", "actual", "actuals", "request")
    class ActualsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    ACTUALS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    actual: int
    actuals: _containers.ScalarMap[str, int]
    request: _ratelimit_pb2.CheckRequest
    def __init__(self, reservation_id: _Optional[str] = ..., actual: _Optional[int] = ..., actuals: _Optional[_Mapping[str, int]] = ..., request: _Optional[_Union[_ratelimit_pb2.CheckRequest, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("reservation_id",)
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    def __init__(self, reservation_id: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("settlements", "replayed", "reported")
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    replayed: bool
    reported: bool
    def __init__(self, settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., replayed: bool = ..., reported: bool = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("settlements", "replayed")
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    replayed: bool
    def __init__(self, settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., replayed: bool = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("rule", "charged", "returned", "debt", "uncounted")
    RULE_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    DEBT_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    rule: str
    charged: int
    returned: int
    debt: int
    uncounted: int
    def __init__(self, rule: _Optional[str] = ..., charged: _Optional[int] = ..., returned: _Optional[int] = ..., debt: _Optional[int] = ..., uncounted: _Optional[int] = ...) -> None: ...
