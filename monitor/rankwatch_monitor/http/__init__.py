"""The HTTP surface: REST API, live stream, authorization, error documents, deadlines of connections.

In: requests of launchers, operators, the page and browsers. Out: JSON, text and event streams; commands to the service.
One module per group of routes; ``app`` mounts them behind the scopes of ``auth``. Errors are RFC 9457 documents
(``problems``). ``fastlane`` answers the most frequent requests without the application. Open ``jobs`` first.
"""
