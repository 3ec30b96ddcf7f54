//! Compiles the CUDA sources with nvcc, if the feature `cuda` is on.
//!
//! `PERIPLUS_CUDA_ARCHITECTURES` lists the GPU architectures, by nvcc's names, separated by spaces. `90` or `90a` (here
//! they mean the same) adds the Hopper kernels to the portable ones. `90+PTX` adds PTX, which the drivers of newer GPUs
//! compile.

// A build script reports an error by a panic; cargo shows its message.
#![allow(clippy::expect_used)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(periplus_hopper)");
    #[cfg(feature = "cuda")]
    cuda::build();
}

#[cfg(feature = "cuda")]
mod cuda {
    use cudaforge::CudaToolkit;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs, thread};

    const ARCHITECTURES: &str = "80 86 89 90a 90+PTX";

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=cuda");
        for variable in ["PERIPLUS_CUDA_ARCHITECTURES", "NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let architectures = env::var("PERIPLUS_CUDA_ARCHITECTURES").unwrap_or_else(|_| ARCHITECTURES.into());
        println!("cargo::rustc-env=PERIPLUS_CUDA_ARCHITECTURES={architectures}");
        // From compute capability 9.0 on, launches let kernels start early, and the code of kernels waits
        // (`early_launch.cuh`). PTX for an older architecture has no wait, but a newer GPU would run it with early
        // starts.
        let too_old =
            |name: &str| name.strip_suffix("+PTX").is_some_and(|base| !base.parse().is_ok_and(|n: u32| n >= 90));
        if let Some(name) = architectures.split_whitespace().find(|name| too_old(name)) {
            panic!("PERIPLUS_CUDA_ARCHITECTURES: {name} is not supported, PTX must be for 90 or newer");
        }
        let hopper = architectures.split_whitespace().any(|name| matches!(name, "90" | "90a"));
        if hopper {
            println!("cargo::rustc-cfg=periplus_hopper");
        }

        // The same search as for Candle's kernels, so that one nvcc compiles both.
        let nvcc = match CudaToolkit::detect() {
            Ok(toolkit) => toolkit.nvcc_path,
            Err(error) => panic!(
                "{error}: the feature cuda needs NVIDIA's compiler nvcc 13.0 or newer in PATH, or NVCC or CUDA_HOME set"
            ),
        };
        let nvcc = nvcc.as_path();
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let mut sources: Vec<PathBuf> = fs::read_dir("cuda")
            .expect("cannot read the folder of CUDA sources")
            .map(|entry| entry.expect("cannot read the folder of CUDA sources").path())
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
                        compile(nvcc, source, &object, targets);
                        object
                    })
                })
                .collect();
            compiling.into_iter().map(|thread| thread.join().expect("nvcc failed")).collect()
        });
        let library = folder.join("libperiplus_cuda.a");
        // nvcc adds to an existing archive and would keep objects of deleted sources.
        let _ = fs::remove_file(&library);
        run(Command::new(nvcc).arg("-lib").args(&objects).arg("-o").arg(&library));
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static=periplus_cuda");
        println!("cargo::rustc-link-lib=dylib=cudart"); // the same library as for Candle's kernels
        println!("cargo::rustc-link-lib=dylib=stdc++");
    }

    /// Whether a source is for compute capability 9.0 only.
    fn for_hopper(source: &Path) -> bool {
        source.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("_hopper"))
    }

    fn compile(nvcc: &Path, source: &Path, object: &Path, targets: &str) {
        let mut command = Command::new(nvcc);
        command.args(["-std=c++17", "-O3", "--extended-lambda", "-Xcompiler", "-fPIC"]);
        for target in targets.split_whitespace() {
            let code = match target.strip_suffix("+PTX") {
                Some(base) => format!("arch=compute_{base},code=compute_{base}"),
                None if for_hopper(source) => format!("arch=compute_{target},code=sm_{target}"),
                None => {
                    let base = target.trim_end_matches('a');
                    format!("arch=compute_{base},code=sm_{base}")
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
            Err(error) => panic!("{command:?} does not start: {error}"),
        }
    }
}
