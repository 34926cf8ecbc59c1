#!/usr/bin/env python3
"""tensorboard.py: the curves, expert loads and samples of runs, from their logs, for TensorBoard.

    pip install tensorboard
    python3 scripts/tensorboard.py OUT [OUT ...]        writes OUT/tensorboard, anew each time, also of a run that goes on
    tensorboard --logdir OUT
"""
import calendar, json, pathlib, shutil, sys, time
del sys.path[0]                 # the folder of this file, which would be imported instead of the package of its name
try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError:
    sys.exit("this Python has no package tensorboard: pip install tensorboard")

CURVES = {"step": {"loss": "loss/training", "lr": "optimizer/learning rate", "norm": "optimizer/gradient norm",
                   "tok_s": "speed/tokens per second", "balance": "routing/balance", "att_balance": "routing/balance of attention",
                   "max_load": "routing/largest load", "dead": "routing/experts without a token"},
          "val": {"loss": "loss/validation", "bits_per_byte": "loss/validation, bits per byte"}}

def values(e):
    """What an event of the log becomes: a point of each curve; a histogram of each router, in which expert i is the bucket around i; or a
    text, indented because TensorBoard reads Markdown."""
    for key, tag in CURVES.get(e["event"], {}).items():
        if isinstance(e.get(key), (int, float)) and (e[key] or key in ("dead", "loss", "norm", "lr")):      # 0: it has no such thing
            yield Summary.Value(tag=tag, simple_value=e[key])
    for router in e.get("routers", []):
        n = router["load"]
        yield Summary.Value(tag=router["name"], histo=HistogramProto(
            min=-0.5, max=len(n) - 0.5, num=sum(n), sum=sum(i * x for i, x in enumerate(n)), sum_squares=sum(i * i * x for i, x in enumerate(n)),
            bucket_limit=[i + 0.5 for i in range(len(n))], bucket=n))
    if e["event"] == "sample":
        text = "\n".join("    " + line for line in e["text"].split("\n"))
        yield Summary.Value(tag="sample", metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
                            tensor=TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape={"dim": [{"size": 1}]}))

for out in map(pathlib.Path, sys.argv[1:] or sys.exit(__doc__)):
    clock, events = 0.0, {}
    for line in open(out / "log.jsonl", encoding="utf-8"):
        try:
            e = json.loads(line)
        except ValueError:                          # cut off by a kill, or still being written
            continue
        if "time" in e:                             # a start, or a resume
            clock = calendar.timegm(time.strptime(e["time"], "%Y-%m-%dT%H:%M:%SZ"))
        clock += (e.get("ms") or 0) / 1000
        if e["event"] in ("step", "val", "load", "sample"):
            events[e["event"], e["step"]] = clock, e            # a resumed run repeats steps: the later line holds
    shutil.rmtree(out / "tensorboard", ignore_errors=True)
    writer = EventFileWriter(str(out / "tensorboard"))
    for (_, step), (clock, e) in sorted(events.items(), key=lambda item: item[0][1]):
        writer.add_event(Event(wall_time=clock, step=step, summary=Summary(value=list(values(e)))))
    writer.close()
    print(f"{out}/tensorboard: {len(events)} events")
