"""Fast lanes: the three most frequent kinds of request, answered on the connection without the ASGI application.

In: bytes of a connection. Out: a response, or the same bytes handed to uvicorn. Open :mod:`.protocol` first.

Uvicorn's parser, the middleware and FastAPI's routing take several times as long as decoding eight rank reports
(measured in ADR 0016). So the protocol class of the connection first offers the bytes of a request to the lanes:

========================  =====================================================================================
lane                      requests
========================  =====================================================================================
:mod:`.otlp`              ``POST /v1/metrics`` with protobuf
:mod:`.launchers`         ``POST …/observations``, ``…/evidence``, ``…/process-events``; ``GET …/directives``
========================  =====================================================================================

A lane takes a request only if its whole head matches a strict pattern (:mod:`.requests`): known path and content type,
a content length, no repeated, folded or unusual header. Everything else falls back to uvicorn with every byte received,
and so does a request of a launcher that turns out to be invalid. Authentication, admission, limits and error responses
are the same on both paths, since both call the same functions.
"""
