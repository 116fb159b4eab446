"""Bad input to what looks, plans, and sees to recipes, data and machines."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.case import HOST, LATIN, OTHER, OWN, SPEC, TRAIN, Case, cluster, own, recipe
from tests.faults.place import (
    all_of,
    corpus,
    cut,
    cut_gzip,
    edited,
    has,
    nothing,
    prepared,
    removed,
    replaced,
    run,
)
from tests.faults.things import ARCHIVES, pictures


def _before_training() -> Iterator[Case]:
    yield Case("recipe", "info none.toml", "there is none", "there is no file")
    yield Case("recipe", "info bad.toml", "no TOML", "cannot be read as TOML", recipe("["))
    yield Case("override", "info demo --set train.sede=1", "an unknown key", 'did you mean "seed"?')
    yield Case("vocabulary", "info own.toml", "there is none", "v.model", own("one\n", more='vocabulary = "v.model"\n'))
    yield Case("recipe", "plan none.toml", "there is none", "there is no file")
    yield Case("command line", "plan demo --nodes 1,x", "no number of nodes", '--nodes is "1,x"')
    yield Case("address", "plan demo --network fast", "no rate", "fast")
    yield Case("command line", "plan demo --device v1000", "an unknown device", "v1000")
    yield Case("command line", "plan demo --hosts h.toml --nodes 2", "two sizes", "--nodes")
    yield Case("command line", "plan demo --sync ddp --set sync.name=diloco", "two ways", "sync.name=diloco")
    yield Case("profile", "plan demo --device p.json", "not there", "there is no file")
    yield Case("profile", "plan demo --device p.json", "no JSON", "p.json", has("p.json", "{"))
    yield Case("profile", "plan demo --device p.json", "of another program", "p.json", has("p.json", '{"steps": 1}'))
    yield Case("list of hosts", "plan demo --hosts h.toml", "no TOML", "cannot be read as TOML", has("h.toml", "["))
    yield Case(
        "list of hosts",
        "plan demo --hosts h.toml",
        "an unknown key",
        "no such key",
        has("h.toml", '[[hosts]]\nlink = "1gbit"\nspeeed = 2\n'),
    )
    yield Case(
        "list of hosts",
        "plan demo --network c.check.json",
        "of another program",
        "c.check.json",
        has("c.check.json", "[]"),
    )
    yield Case("recipe", "profile none.toml", "there is none", "there is no file")
    yield Case("command line", "profile demo --steps 1", "too few steps", "--steps")
    yield Case("command line", "profile demo --to nowhere/p.json", "no such folder", "cannot be written")


def _looking() -> Iterator[Case]:
    yield Case("command line", "runs none", "there is none", "there is no folder none")
    yield Case("command line", "runs taken", "a file", "taken", has("taken", "x"))
    yield Case("command line", "runs a b", "two folders", "b")
    for verb in ("watch", "diagnose", "report", "tensorboard"):
        yield Case("run directory", f"{verb} none", "there is none", "is not a run directory")
        yield Case("run directory", f"{verb} taken", "a file", "is not a run directory", has("taken", "x"))
        yield Case(
            "run directory",
            f"{verb} taken",
            "a folder of something else",
            "is not a run directory",
            has("taken/thesis.tex", "dear"),
        )
    yield Case("command line", "watch run --every 0", "no interval", "--every", run())
    yield Case("command line", "report run -o page.pdf", "an unknown ending", "cannot tell the format", run())
    yield Case("command line", "report run -o nowhere/page.html", "no such folder", "cannot be written", run())
    yield Case("address", "report run --serve --port PORT", "a port that is taken", "PORT", run())
    yield Case("address", "report run --serve --port 70000", "no port", "--port", run())
    yield Case("disk", "report run -o here/page.html", "read-only", "cannot be written", run(), disk="read-only")
    yield Case("disk", "report run -o here/page.html", "full", "No space left", run(), disk="full")
    yield Case("command line", "compare run", "one run", "nothing to be compared with", run())
    yield Case("run directory", "compare run none", "there is none", "is not a run directory", run())
    yield Case("run directory", "compare none run", "there is none", "is not a run directory", run())
    yield Case("command line", "compare run run --price -1", "a negative price", "--price", run())
    yield Case("command line", "compare run run --price nan", "a price that is no number", "--price", run())
    yield Case("disk", "compare run run -o here/page.html", "read-only", "cannot be written", run(), disk="read-only")
    yield Case("address", "tensorboard run --port PORT", "a port that is taken", "cannot be used", run())
    yield Case(
        "run directory", "tensorboard run", "nothing for it", "nothing for TensorBoard yet", run(removed("tensorboard"))
    )


def _recipes() -> Iterator[Case]:
    yield Case("command line", "recipes list surplus", "a word too many", "surplus")
    yield Case("command line", "recipes list --nonsense", "an unknown option", "--nonsense")
    yield Case("command line", "recipes list --json=5", "a value too many", "--json")
    for verb in ("show", "copy"):
        to = " mine.toml" if verb == "copy" else ""
        yield Case("recipe", f"recipes {verb} deom{to}", "a name with a slip", 'did you mean "demo"?')
        yield Case("recipe", f"recipes {verb} none.toml{to}", "there is none", "there is no file")
        yield Case(
            "recipe",
            f"recipes {verb} bad.toml{to}",
            "not UTF-8",
            "bad.toml: cannot be read as TOML",
            has("bad.toml", LATIN),
        )
    yield Case("recipe", "recipes show bad.toml --all", "no TOML", "cannot be read as TOML", recipe("["))
    yield Case(
        "command line",
        "recipes copy demo mine.toml",
        "a file that is there",
        "exists already",
        has("mine.toml", "mine"),
    )
    yield Case("disk", "recipes copy demo here/mine.toml", "read-only", "cannot be written", disk="read-only")
    yield Case("disk", "recipes copy demo here/mine.toml", "full", "No space left", disk="full")
    yield Case("recipe", "recipes check none.toml", "there is none", "there is no file")
    yield Case("recipe", "recipes check bad.toml", "no TOML", "cannot be read as TOML", recipe("["))
    yield Case(
        "recipe",
        "recipes check bad.toml",
        "unknown keys",
        'did you mean "seed"?',
        recipe(OWN + TRAIN.replace("[train]", "[train]\nsede = 1")),
    )


def _data() -> Iterator[Case]:
    yield Case("command line", "data list surplus", "a word too many", "surplus")
    yield Case("command line", "data list --nonsense", "an unknown option", "--nonsense")
    yield Case("command line", "data list --json=5", "a value too many", "--json")
    yield Case("command line", "data get wmt16", "an unknown set", 'did you mean "wmt16-en-de"?')
    yield Case("command line", "data get own", "one's own text", "need not be got")
    yield Case("command line", "data get tatoeba-en-de --from none", "no such folder", "none")
    yield Case("address", "data get tatoeba-en-de --mirror nonsense", "no address", "nonsense")
    yield Case("address", "data get tatoeba-en-de --mirror file:///etc", "a file's address", "file:///etc")
    for what, content in ARCHIVES.items():
        yield Case(
            "archive",
            "data get tatoeba-en-de --from taken --no-prepare",
            what,
            "deu-eng.zip",
            has("taken/deu-eng.zip", content),
        )
    yield Case("command line", "data prepare --source a.en", "one side", "train_target: missing", has("a.en", "one\n"))
    yield Case(
        "command line", "data prepare --file a.tsv --set max_word=3", "an unknown key", 'did you mean "max_words"'
    )
    yield Case("text", "data prepare --file a.tsv", "no tabs", "tab", has("a.tsv", "one\ntwo\n" * 50))
    yield Case("text", "data prepare --file a.jsonl", "no JSON", "JSON", has("a.jsonl", "{\n" * 50))
    yield Case(
        "text",
        "data prepare --source a.sgm --target b.sgm",
        "SGML without a sentence",
        "has no <seg>",
        all_of(has("a.sgm", "<doc>"), has("b.sgm", "<doc>")),
    )
    yield Case(
        "text",
        "data prepare --source a.sgm --target b.sgm",
        "SGML that is cut",
        "has no </seg>",
        all_of(has("a.sgm", "<seg>one</seg><seg>tw"), has("b.sgm", "<seg>eins</seg>")),
    )
    yield Case(
        "disk",
        "data prepare --source a.en --target a.de",
        "read-only",
        "cannot write",
        corpus,
        {"KONVOI_HOME": "here/home"},
        disk="read-only",
    )
    yield Case(
        "disk", "data prepare demo-en-de", "KONVOI_HOME is a file", "taken", has("taken", "x"), {"KONVOI_HOME": "taken"}
    )
    yield Case("picture", "data prepare image-folder --from none", "no such folder", "none")
    yield Case("picture", "data prepare image-folder --from taken", "no pictures", "taken", has("taken/a.txt", "x"))
    yield Case(
        "picture",
        "data prepare image-folder --from taken --to there",
        "a place that is taken",
        "there",
        all_of(pictures, has("there/thesis.tex", "dear")),
    )
    yield Case(
        "archive",
        "data prepare imagenette --from taken",
        "a cut archive",
        "taken",
        has("taken/imagenette2-160.tgz", cut_gzip("x" * 100_000)),
    )
    yield Case("command line", "data info nothing", "neither set nor folder", "neither a prepared set nor a folder")
    yield Case(
        "prepared set",
        "data info taken",
        "a folder of something else",
        "is no prepared set",
        has("taken/thesis.tex", "dear"),
    )
    yield Case(
        "prepared set", "data info prepared", "info.json cut", "info.json is damaged", prepared(cut("info.json"))
    )
    yield Case(
        "prepared set",
        "data info prepared",
        "info.json of another version",
        "of another version",
        prepared(edited("info.json", version=99)),
    )
    yield Case(
        "prepared set",
        "data info prepared",
        "info.json without its tables",
        "info.json is damaged",
        prepared(replaced("info.json", '{"version": 2, "source": "en", "target": "de"}')),
    )
    yield Case(
        "prepared set",
        "data info prepared",
        "info.json with other types",
        "info.json is damaged",
        prepared(edited("info.json", filters=3, pairs="many")),
    )


def _cluster() -> Iterator[Case]:
    broken = {
        "there is none": ("cluster.toml", nothing),
        "no TOML": ("cannot be read as TOML", cluster("[[hosts")),
        "empty": ("hosts: missing", cluster("")),
        "an unknown key": ('did you mean "ports"?', cluster("port = 3\n" + HOST)),
        "an address that is none": ("must be an IPv4 address", cluster(HOST.replace("10.0.0.1", "10.0.0.999"))),
        "the same address twice": ("is given to more than one host", cluster(HOST + OTHER.replace("0.2", "0.1"))),
        "an option in the place of a host": (
            "a name of ~/.ssh/config",
            cluster(HOST.replace('ssh = "a"', 'ssh = "-oProxyCommand=x"')),
        ),
        "ports the wrong way round": ("FIRST-LAST", cluster('ports = "30000-20000"\n' + HOST)),
        "loopback beside another host": ("loopback", cluster(HOST.replace("10.0.0.1", "127.0.0.1") + OTHER)),
    }
    for what, (says, put) in broken.items():
        yield Case("cluster file", "cluster show", what, says, put)
    for verb in ("check", "setup", "exec -- true", "ssh 0"):
        for what in ("there is none", "no TOML", "an unknown key"):
            says, put = broken[what]
            yield Case("cluster file", f"cluster {verb}", what, says, put)
    yield Case("command line", "cluster ssh nobody", "an unknown host", 'no host "nobody"', cluster(HOST))
    yield Case("command line", "cluster exec --on nobody -- true", "an unknown host", 'no host "nobody"', cluster(HOST))
    yield Case("recipe", "cluster check --recipe none.toml", "there is none", "there is no file", cluster(HOST))
    yield Case("recipe", "cluster setup --recipe none.toml", "there is none", "there is no file", cluster(HOST))
    yield Case("run directory", "cluster pull none", "there is none", "is not a run directory")
    yield Case("run directory", "cluster pull run", "of no cluster", "was not trained on a cluster", run())
    yield Case(
        "run directory",
        "cluster pull run",
        f"{SPEC} cut",
        "spec.json",
        run(replaced("job/cluster.toml", HOST), replaced(SPEC, "{")),
    )
    yield Case("command line", "cluster import", "no source", "nothing says where the hosts are")
    yield Case("list of hosts", "cluster import --aws none.json", "not there", "none.json cannot be read")
    yield Case("list of hosts", "cluster import --aws a.json", "no JSON", "JSON", has("a.json", "{"))
    yield Case(
        "list of hosts",
        "cluster import --aws a.json",
        "other JSON",
        "not what aws ec2 describe-instances prints",
        has("a.json", "[[1]]"),
    )
    yield Case("list of hosts", "cluster import --hostfile h", "not UTF-8", "is not text in UTF-8", has("h", LATIN))
    yield Case("list of hosts", "cluster import --hostfile h", "an unknown word", "is not known", has("h", "a slotz=2"))
    yield Case("list of hosts", "cluster import --hostfile h", "empty", "names no host", has("h", "# nobody\n"))
    yield Case("address", "cluster import -H a:0", "no slots", '"0" slots')
    yield Case("address", "cluster import --host=-oProxyCommand=x", "an option in the place of a host", "-H")
    yield Case("address", "cluster import --ssh nowhere.invalid", "an unknown name", "nowhere.invalid")
    yield Case("cluster file", "cluster import -H 127.0.0.1", "one that is there", "exists already", cluster(HOST))
    yield Case(
        "disk", "cluster import -H 127.0.0.1 -o here/cluster.toml", "read-only", "cannot be written", disk="read-only"
    )


OTHERS = [*_before_training(), *_looking(), *_recipes(), *_data(), *_cluster()]
