//! `synth`, `inspect`, `convert` and `bench` on a small network.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Scratch, TINY, periplus, run, stream};
use serde_json::Value;

#[test]
fn what_synth_writes_inspect_understands() {
    let scratch = Scratch::new();
    let weights = scratch.tiny_weights();
    let ended = run(periplus().arg("inspect").arg(&weights));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for said in ["0.86 M", "in f32", "70 x 70", "3 scale frames", "window 4"] {
        assert!(ended.stdout.contains(said), "{said:?} is not in {}", ended.stdout);
    }
    let ended = run(periplus().arg("inspect").arg(&weights).args([
        "--image-size",
        "700",
        "--image-height",
        "392",
        "--window",
        "64",
    ]));
    assert!(ended.stdout.contains("700 x 392") && ended.stdout.contains("window 64"), "{}", ended.stdout);
}

#[test]
fn inspect_shows_the_bundled_checkpoint() {
    let ended = run(periplus().args(["inspect", "demo"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for said in ["6.56 M", "in f16", "224 x 224", "4 scale frames", "window 8"] {
        assert!(ended.stdout.contains(said), "{said:?} is not in {}", ended.stdout);
    }
}

#[test]
fn one_seed_makes_one_checkpoint() {
    let scratch = Scratch::new();
    let config = scratch.write("tiny.json", TINY);
    let synth = |name: &str, seed: &str| {
        let file = scratch.path(name);
        let mut command = periplus();
        command.arg("synth").arg(&file).arg("--config").arg(&config).args(["--seed", seed, "--dtype", "bf16"]);
        assert_eq!(run(&mut command).code, 0);
        // The numbers; metadata in the header before them has no order of its own.
        let contents = fs::read(file).unwrap();
        let header = u64::from_le_bytes(*contents.first_chunk().unwrap());
        contents[8 + header as usize..].to_vec()
    };
    let (one, again, other) = (synth("one", "1"), synth("again", "1"), synth("other", "2"));
    assert!(one == again && one != other && one.len() == other.len());
}

/// A PyTorch checkpoint of [`TINY`] in float16, which does not tell its architecture but by the shapes.
fn pytorch_checkpoint() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.pt"))
}

#[test]
fn a_converted_checkpoint_streams() {
    let scratch = Scratch::new();
    let weights = scratch.path("converted.safetensors");
    let ended = run(periplus().arg("convert").arg(pytorch_checkpoint()).arg(&weights));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("f16"), "{}", ended.stderr);
    let ended = run(stream(&scratch.pictures("clip", 4), &weights).args(["--json", "--scale-frames", "2"]));
    assert_eq!((ended.code, ended.stdout.lines().count()), (0, 4), "{}", ended.stderr);
}

/// The offsets of the checksums in a zip archive, in the headers of its entries and in its directory.
fn checksums(archive: &[u8]) -> Vec<usize> {
    let header = |at: usize| match &archive[at..at + 4] {
        b"PK\x03\x04" => Some(at + 14),
        b"PK\x01\x02" => Some(at + 16),
        _ => None,
    };
    (0..archive.len() - 20).filter_map(header).collect()
}

#[test]
fn convert_checks_the_data_of_a_pytorch_checkpoint() {
    let scratch = Scratch::new();
    let whole = fs::read(pytorch_checkpoint()).unwrap();
    let convert = |bytes: &[u8]| {
        let input = scratch.write("in/some.pt", bytes);
        run(periplus().arg("convert").arg(input).arg(scratch.path("in/out.safetensors")))
    };
    let ended = convert(&whole);
    assert_eq!((ended.code, ended.stderr.contains("not checked")), (0, false), "{}", ended.stderr);
    // A bit of the largest entry, which is weights.
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    let ended = convert(&flipped);
    assert_eq!((ended.code, ended.stderr.lines().count()), (1, 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("differs from its checksum; copy or download the file again"), "{}", ended.stderr);
    // Without any checksums, nothing can be checked; where some are right, the others are wrong.
    let mut without = flipped.clone();
    let places = checksums(&whole);
    for &at in &places {
        without[at..at + 4].fill(0);
    }
    let ended = convert(&without);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("note: the data was not checked for damage"), "{}", ended.stderr);
    let directory = places.len() / 2;
    for &at in &[places[directory], places[0]] {
        without[at..at + 4].copy_from_slice(&whole[at..at + 4]);
    }
    assert_eq!(convert(&without).code, 1);
}

#[test]
fn convert_changes_the_dtype_of_safetensors_and_says_where_the_weights_were() {
    let scratch = Scratch::new();
    let weights = scratch.tiny_weights();
    let output = scratch.path("half.safetensors");
    let ended = run(periplus().arg("convert").arg(&weights).arg(&output).args(["--dtype", "bf16"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("not checked") && ended.stderr.contains("in bf16"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("under"), "{}", ended.stderr);
    // The same under a prefix, as `torch.compile` saves it.
    let mut compiled = fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(*compiled.first_chunk().unwrap()) as usize;
    let header = String::from_utf8(compiled[8..8 + length].to_vec()).unwrap();
    let mut header: serde_json::Map<String, Value> = serde_json::from_str(&header).unwrap();
    let names: Vec<_> = header.keys().filter(|name| !name.starts_with("__")).cloned().collect();
    for name in names {
        let entry = header.remove(&name).unwrap();
        header.insert(format!("_orig_mod.{name}"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    compiled.splice(..8 + length, [&(header.len() as u64).to_le_bytes()[..], &header].concat());
    let compiled = scratch.write("compiled.safetensors", compiled);
    let note = "note: the weights in use are those under `_orig_mod`\n";
    let ended = run(periplus().arg("convert").arg(&compiled).arg(&output));
    assert!(ended.code == 0 && ended.stderr.contains(note), "{}", ended.stderr);
    let mut command = stream(&scratch.pictures("clip", 3), &compiled);
    let ended = run(command.arg("--json"));
    assert!(ended.code == 0 && ended.stderr.matches(note).count() == 1, "{}", ended.stderr);
    let ended = run(command.arg("--quiet"));
    assert!(ended.code == 0 && ended.stderr.is_empty(), "{}", ended.stderr);
    let ended = run(periplus().arg("inspect").arg(&compiled));
    assert!(ended.stdout.contains("\nWeights under        _orig_mod\n") && ended.stderr.is_empty(), "{}", ended.stdout);
}

#[test]
fn inspect_ends_with_a_total() {
    let scratch = Scratch::new();
    let ended = run(periplus().arg("inspect").arg(scratch.tiny_weights()));
    let total = ended.stdout.lines().last().unwrap();
    assert!(total.starts_with("Total    ") && total.contains("MiB when the window is full"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("published"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("Weights under"), "{}", ended.stdout);
}

#[test]
fn inspect_looks_into_a_pytorch_checkpoint() {
    let ended = run(periplus().arg("inspect").arg(pytorch_checkpoint()));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for said in ["0.86 M", "in f16", "70 x 70"] {
        assert!(ended.stdout.contains(said), "{said:?} is not in {}", ended.stdout);
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_named_by_all_commands_alike() {
    let scratch = Scratch::new();
    let weights = scratch.tiny_weights();
    let lost = scratch.path("lost.json");
    let wrong = scratch.write("wrong.json", r#"{"depth": 0}"#);
    for (config, words) in [(&lost, "cannot read "), (&wrong, "`depth` is 0")] {
        let complaint = |command: &mut Command| run(command.arg("--config").arg(config)).stderr;
        let said = complaint(periplus().arg("inspect").arg(&weights));
        assert!(said.contains(words) && said.contains(config.to_str().unwrap()), "{said}");
        assert_eq!(complaint(periplus().arg("synth").arg(scratch.path("new.safetensors"))), said);
    }
}

#[test]
fn a_pytorch_checkpoint_is_to_be_converted_first() {
    let scratch = Scratch::new();
    let ended = run(&mut stream(&scratch.pictures("clip", 1), pytorch_checkpoint()));
    assert_eq!(ended.code, 1);
    let error = ended.stderr.lines().last().unwrap();
    assert!(error.starts_with("error: ") && error.contains("periplus convert"), "{error}");
}

#[test]
fn convert_leaves_nothing_behind_when_it_fails() {
    let scratch = Scratch::new();
    let whole = fs::read(pytorch_checkpoint()).unwrap();
    let input = scratch.write("in/cut.pt", &whole[..whole.len() / 2]);
    fs::create_dir(scratch.path("out")).unwrap();
    let ended = run(periplus().arg("convert").arg(input).arg(scratch.path("out/weights.safetensors")));
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains("cut.pt"), "{}", ended.stderr);
    assert!(common::names(&scratch.path("out")).is_empty());
}

/// A network large enough for its checkpoint to take a while.
#[cfg(unix)]
const LARGE: &str = r#"{"embed_dim": 512, "num_heads": 8, "vit_heads": 8, "camera_heads": 8}"#;

#[cfg(unix)]
#[test]
fn an_interrupted_checkpoint_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let config = scratch.write("large.json", LARGE);
    for signal in ["-INT", "-TERM"] {
        let output = scratch.write("out/weights.safetensors", "an earlier file");
        let mut command = periplus();
        command.arg("synth").arg(&output).arg("--config").arg(&config).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let started = Instant::now();
        while common::names(&scratch.path("out")).len() == 1 {
            assert!(started.elapsed() < Duration::from_secs(90) && child.try_wait().unwrap().is_none());
        }
        common::signal(signal, &child);
        let ended = common::Ended::from(child.wait_with_output().unwrap());
        assert_eq!(ended.stderr, format!("interrupted: {} was not written\n", output.display()));
        assert_eq!(ended.code, 130);
        assert_eq!(common::names(&scratch.path("out")), ["weights.safetensors"]);
        assert_eq!(fs::read_to_string(output).unwrap(), "an earlier file");
    }
}

#[cfg(unix)]
#[test]
fn a_checkpoint_that_cannot_be_written_to_its_end_is_named_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let config = scratch.write("tiny.json", TINY);
    let output = scratch.path("out/weights.safetensors");
    fs::create_dir(scratch.path("out")).unwrap();
    let limited = r#"trap "" XFSZ; ulimit -f 1000; exec "$@""#; // half a megabyte, or a whole one
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_periplus"), "synth"]).arg(&output);
    let ended = run(command.arg("--config").arg(config));
    assert_eq!((ended.code, ended.stderr.lines().count()), (1, 1), "{}", ended.stderr);
    let sentence = format!("error: cannot write {}: File too large", output.display());
    assert!(ended.stderr.starts_with(&sentence) && !ended.stderr.contains(".partial"), "{}", ended.stderr);
    assert!(common::names(&scratch.path("out")).is_empty());
}

#[test]
fn a_folder_that_is_not_there_is_named_before_anything_is_written() {
    let scratch = Scratch::new();
    let config = scratch.write("tiny.json", TINY);
    let output = scratch.path("nowhere/weights.safetensors");
    let (mut synth, mut convert) = (periplus(), periplus());
    synth.arg("synth").arg(&output).arg("--config").arg(config);
    convert.arg("convert").arg(pytorch_checkpoint()).arg(&output);
    for command in [&mut synth, &mut convert] {
        let ended = run(command);
        assert_eq!((ended.code, ended.stderr.lines().count()), (1, 1), "{}", ended.stderr);
        let advice = format!("there is no folder {}: make it first\n", scratch.path("nowhere").display());
        assert!(ended.stderr.ends_with(&advice) && !ended.stderr.contains("os error"), "{}", ended.stderr);
    }
}

#[test]
fn bench_tells_where_the_time_goes() {
    let scratch = Scratch::new();
    let config = scratch.write("tiny.json", TINY);
    let bench = |json: bool| {
        let mut command = periplus();
        command
            .args(["bench", "--image-size", "70", "--image-height", "56", "--frames", "3"])
            .arg("--config")
            .arg(&config);
        let ended = run(if json { command.arg("--json") } else { &mut command });
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stdout
    };
    let table = bench(false);
    for said in ["patch embedding", "of which attention", "depth head", "frames per second"] {
        assert!(table.contains(said), "{said:?} is not in {table}");
    }
    let measured: Value = serde_json::from_str(&bench(true)).unwrap();
    assert_eq!(measured["streamed_frame"]["frames"], 3);
    assert_eq!(measured["scale_pass"]["frames"], 2);
    let stages = measured["streamed_frame"]["stages"].as_object().unwrap();
    let time = |stage: &str| stages[stage].as_f64().unwrap();
    assert!(time("global_block") >= time("global_attention") && time("global_attention") > 0.0);
    let outer: f64 =
        stages.iter().filter(|(name, _)| *name != "global_attention").map(|(_, t)| t.as_f64().unwrap()).sum();
    let whole = measured["streamed_frame"]["milliseconds"].as_f64().unwrap();
    assert!(outer <= whole && outer > 0.5 * whole, "{outer} ms of {whole}");
}

#[test]
fn bench_refuses_pictures_that_are_not_whole_patches() {
    let ended = run(periplus().args(["bench", "--weights", "demo", "--image-size", "225", "--image-height", "168"]));
    assert_eq!(ended.code, 2);
    assert_eq!(ended.stderr, "error: image size 225 is not a multiple of the patch size 14: use 224 or 238\n");
}

#[test]
fn bench_counts_in_words() {
    let mut command = periplus();
    command.args(["bench", "--weights", "demo", "--image-size", "28", "--threads", "1"]);
    let table = run(command.args(["--scale-frames", "1", "--frames", "1"])).stdout;
    assert!(table.contains(", 1 thread; ") && table.contains(" 1 scale frame "), "{table}");
}

#[test]
fn the_environment_cannot_ask_for_too_many_threads() {
    for (variable, threads, warned) in [("1000000000", "256 threads", true), ("2", "2 threads", false)] {
        let mut command = periplus();
        command.env("RAYON_NUM_THREADS", variable);
        command.args(["bench", "--weights", "demo", "--image-size", "28", "--device", "cpu"]);
        let ended = run(command.args(["--scale-frames", "1", "--frames", "1"]));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains(&format!(", {threads};")), "{}", ended.stdout);
        let warning = ended.stderr.contains("warning: RAYON_NUM_THREADS asks for 1000000000 threads");
        assert_eq!(warning, warned, "{}", ended.stderr);
    }
}

#[test]
fn bench_refuses_a_window_that_cannot_be() {
    let ended = run(periplus().args(["bench", "--weights", "demo", "--window", "1048577"]));
    assert_eq!(ended.stderr, "error: --window cannot be 1048577: give a whole number from 1 to 1048576\n");
    assert_eq!(ended.code, 2);
}

#[test]
fn the_bundled_checkpoint_is_called_so_and_needs_no_place_on_the_disk() {
    let scratch = Scratch::new();
    let config = scratch.write("other.json", "{}");
    let mut command = periplus();
    command.args(["inspect", "demo"]).env("TMPDIR", scratch.path("nowhere"));
    assert_eq!(run(&mut command).code, 0);
    let ended = run(command.arg("--config").arg(&config));
    // The given configuration wins: it is that of the published network.
    assert_eq!(ended.code, 1);
    let expected = "error: the bundled checkpoint lacks tensors of its network (884): ";
    assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
}

#[test]
fn convert_does_not_replace_what_it_reads() {
    let scratch = Scratch::new();
    let whole = fs::read(pytorch_checkpoint()).unwrap();
    let file = scratch.write("some.pt", &whole);
    let ended = run(periplus().arg("convert").arg(&file).arg(scratch.path("./some.pt")));
    assert_eq!((ended.code, ended.stderr.lines().count()), (2, 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("some.pt would be replaced"), "{}", ended.stderr);
    assert!(fs::read(&file).unwrap() == whole);
}

#[test]
fn results_stop_quietly_when_nobody_reads_them() {
    let mut child = periplus().args(["inspect", "demo"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
