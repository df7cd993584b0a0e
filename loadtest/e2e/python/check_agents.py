"""OpenAI's agents SDK on chat and Responses: its runner calls the tools."""

import asyncio
import importlib.metadata

import agents
import openai
import pydantic
from steps import CALL, QUESTION, RESULT, TIMEOUT, Steps, check, finish, gateway, model, report, system

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
seen = []


class Place(pydantic.BaseModel):
    name: str
    depth: int


@agents.function_tool
def tide(at: str) -> str:
    """The tide at a time of day."""
    seen.append(at)
    return RESULT


def drive(api, kind):
    steps = Steps(api)

    def agent(named=model, **more):
        settings = agents.ModelSettings(max_tokens=300, include_usage=True, store=False, **more.pop("settings", {}))
        return agents.Agent(name="pilot", instructions=system(api + " of agents"), model=kind(model=named, openai_client=client), model_settings=settings, **more)

    def run(who, said):
        return loop.run_until_complete(agents.Runner.run(who, said))

    async def streaming(who, said):
        result = agents.Runner.run_streamed(who, said)
        deltas = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas += event.data.delta
        return result, deltas

    def created():
        result = run(agent(), QUESTION)
        check(result.final_output, result)
        return result.final_output

    whole = steps.run("create", created)

    def streamed():
        result, deltas = loop.run_until_complete(streaming(agent(), QUESTION))
        check(result.final_output == deltas == whole, "streamed", deltas, "created", whole)

    steps.run("stream", streamed)
    said = []

    def count(responses):
        for response in responses:
            steps.cached(response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens)

    def called():
        seen.clear()
        result = run(agent(tools=[tide]), CALL)
        check(seen == ["noon"] and result.final_output, seen, result)
        count(result.raw_responses[1:])
        said[:] = result.to_input_list()

    steps.run("tools", called)

    def later():
        result, _ = loop.run_until_complete(streaming(agent(tools=[tide]), list(said)))
        check(result.final_output, result)
        count(result.raw_responses)
        said[:] = result.to_input_list()

    steps.turns(said, later)
    steps.run("agent", lambda: (seen.clear(), loop.run_until_complete(streaming(agent(tools=[tide]), CALL)), check(seen == ["noon"], seen)))
    steps.run("structured", lambda: check(isinstance(run(agent(output_type=Place), QUESTION).final_output, Place)))

    def create(stream=False, model=model, max_tokens=300, **settings):
        who = agent(model, settings=settings)
        who.model_settings.max_tokens = max_tokens
        return loop.run_until_complete(streaming(who, QUESTION)) if stream else run(who, QUESTION)

    steps.refused(create, openai.NotFoundError, openai.BadRequestError, (openai.APIError, agents.AgentsException), max_tokens=10_000_000)


report(version=importlib.metadata.version("openai-agents"))
loop = asyncio.new_event_loop()
drive("chat", agents.OpenAIChatCompletionsModel)
drive("responses", agents.OpenAIResponsesModel)
finish()
