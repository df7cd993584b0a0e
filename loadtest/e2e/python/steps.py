"""What the scripts of clients share: each step is one thing that a client does, and is printed
as a line of JSON as soon as it is done, {"api", "step", "error"}; error is null where it went
well. cached() prints how much of a later turn's prompt was found in a cache.
"""

import json
import sys
import traceback
import urllib.request

config = json.loads(sys.argv[1])
gateway, model = config["gateway"], config["model"]

TIMEOUT = 60

# Long enough for prefilling on another server to be worth it, and other for each client and
# API, so that no cache knows it beforehand.
def system(api):
    return f"{config['client']} on {api}. " + " ".join(f"rule{i}: be brief and kind." for i in range(250))


QUESTION = "Tell me of the sea."
CALL = 'Ask tide({"at": "noon"}) and say what it answers.'
FOLLOW_UP = "And in the evening?"
RESULT = "high water at noon"


def report(**line):
    print(json.dumps(line), flush=True)


def check(true, *said):
    if not true:
        raise AssertionError(" ".join(map(str, said)))


class Steps:
    """The steps of one API."""

    def __init__(self, api):
        self.api = api

    def run(self, step, do):
        """Runs a step; what it raises is its error, and None its result."""
        result, error = None, None
        try:
            result = do()
        except Exception as e:  # whatever it is, it is the result
            error = f"{type(e).__name__}: {e}"[:600]
            traceback.print_exc()
        report(api=self.api, step=step, error=error)
        return result

    def lacks(self, step, why):
        report(api=self.api, step=step, lacks=why, error=None)

    def cached(self, prompt, cached):
        report(api=self.api, prompt=prompt, cached=cached or 0)

    def turns(self, said, later):
        """Two more turns of a conversation, whose messages are said: later() sends them, adds
        what was answered, and prints by cached() what was found in a cache."""

        def follow():
            for _ in range(2):
                said.append({"role": "user", "content": FOLLOW_UP})
                later()

        self.run("turns", follow)

    def refused(self, create, not_found, bad_request, broken, **bad):
        """The errors: create(**more) must raise the client's class for each."""
        self.run("unknown model", lambda: self.raises(not_found, lambda: create(model="no-such-model")))
        self.run("bad request", lambda: self.raises(bad_request, lambda: create(temperature=-1)))
        self.run("over limit", lambda: self.raises(bad_request, lambda: create(**bad)))
        last.append(lambda: self.run("broken stream", lambda: self.raises(broken, lambda: create(stream=True))))

    def raises(self, kind, do):
        try:
            got = do()
        except kind as e:
            return e
        raise AssertionError(f"looked like success: {str(got)[:300]}")


last = []


def finish():
    """Lets all decode servers break each answer after some tokens, once whoever started the
    script has seen what they did before, and runs the steps about that."""
    report(answered=True)
    sys.stdin.readline()
    for server in config["decode"]:
        fault("POST", server, {"kind": "die_after_tokens", "tokens": 5})
    for step in last:
        step()
    for server in config["decode"]:
        fault("DELETE", server)


def fault(method, server, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server + "/sim/faults", data, {"Content-Type": "application/json"}, method=method)
    urllib.request.urlopen(request, timeout=TIMEOUT).close()
