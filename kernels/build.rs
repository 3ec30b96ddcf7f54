//! Compiles the CUDA sources, if the feature asks for them.
//!
//! `PERIPLUS_CUDA_ARCHITECTURES` says for which cards: numbers as nvcc has them, separated by spaces; `90` and
//! `90a`, which are the same here, add the kernels for Hopper to the portable ones, `90+PTX` is what the driver of a newer card compiles.

// A build script that cannot go on can only panic; cargo shows why.
#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

const ARCHITECTURES: &str = "80 86 89 90a 90+PTX";
/// Variables that say where nvcc is; the first is the program itself.
const PLACES: [&str; 4] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(periplus_hopper)");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=cuda");
    for variable in PLACES.iter().chain(&["PERIPLUS_CUDA_ARCHITECTURES", "NVCC_CCBIN"]) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let architectures = env::var("PERIPLUS_CUDA_ARCHITECTURES").unwrap_or_else(|_| ARCHITECTURES.into());
    println!("cargo::rustc-env=PERIPLUS_CUDA_ARCHITECTURES={architectures}");
    // Kernels ask at compile time whether they may start early, and launches ask the card: code for older ones, compiled for a
    // newer by its driver, would start early and not wait.
    let early =
        |name: &str| name.strip_suffix("+PTX").is_some_and(|number| !number.parse().is_ok_and(|n: u32| n >= 90));
    if let Some(name) = architectures.split_whitespace().find(|name| early(name)) {
        panic!("PERIPLUS_CUDA_ARCHITECTURES: {name} cannot be, PTX is for 90 and newer");
    }
    let hopper = architectures.split_whitespace().any(|name| matches!(name, "90" | "90a"));
    if hopper {
        println!("cargo::rustc-cfg=periplus_hopper");
    }

    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut sources: Vec<PathBuf> = fs::read_dir("cuda")
        .expect("the folder with the CUDA sources is readable")
        .map(|entry| entry.expect("the folder with the CUDA sources is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .filter(|path| hopper || !for_hopper(path))
        .collect();
    sources.sort();
    let objects: Vec<PathBuf> = thread::scope(|scope| {
        let compiling: Vec<_> = sources
            .iter()
            .map(|source| {
                let object = folder.join(source.file_name().expect("a source has a name")).with_extension("o");
                let targets = if for_hopper(source) { "90a" } else { architectures.as_str() };
                scope.spawn(move || {
                    compile(source, &object, targets);
                    object
                })
            })
            .collect();
        compiling.into_iter().map(|thread| thread.join().expect("nvcc compiles the CUDA sources")).collect()
    });
    let library = folder.join("libperiplus_cuda.a");
    // An archive that is there already would keep what has since been deleted.
    let _ = fs::remove_file(&library);
    run(Command::new(nvcc()).arg("-lib").args(&objects).arg("-o").arg(&library));
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static=periplus_cuda");
    println!("cargo::rustc-link-lib=dylib=cudart"); // the one that candle's kernels ask for
    println!("cargo::rustc-link-lib=dylib=stdc++");
}

/// Whether a source uses instructions of compute capability 9.0 that no other card has.
fn for_hopper(source: &Path) -> bool {
    source.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("_hopper"))
}

fn nvcc() -> PathBuf {
    let [program, homes @ ..] = PLACES;
    env::var_os(program)
        .map(PathBuf::from)
        .or_else(|| {
            homes
                .iter()
                .filter_map(env::var_os)
                .map(|home| Path::new(&home).join("bin/nvcc"))
                .find(|path| path.exists())
        })
        .unwrap_or_else(|| "nvcc".into())
}

fn compile(source: &Path, object: &Path, targets: &str) {
    let mut command = Command::new(nvcc());
    command.args(["-std=c++17", "-O3", "--extended-lambda", "-Xcompiler", "-fPIC"]);
    for target in targets.split_whitespace() {
        let code = match target.strip_suffix("+PTX") {
            Some(number) => format!("arch=compute_{number},code=compute_{number}"),
            None if for_hopper(source) => format!("arch=compute_{target},code=sm_{target}"),
            None => {
                let number = target.trim_end_matches('a');
                format!("arch=compute_{number},code=sm_{number}")
            }
        };
        command.arg("-gencode").arg(code);
    }
    if let Some(compiler) = env::var_os("NVCC_CCBIN") {
        command.arg("-ccbin").arg(compiler);
    }
    run(command.arg("-c").arg(source).arg("-o").arg(object));
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?} ended with {status}"),
        Err(error) => panic!(
            "{command:?} does not start ({error}): the feature cuda needs NVIDIA's compiler nvcc 13.0 or newer, on the path \
             or where NVCC or CUDA_HOME says"
        ),
    }
}
