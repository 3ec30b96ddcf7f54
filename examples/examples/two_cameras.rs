//! Two cameras at the same time: one engine, and a session and a thread for each camera.
//!
//! `cargo run --release -p periplus-examples --example two_cameras -- WEIGHTS.safetensors LEFT RIGHT`

use std::path::Path;
use std::process::ExitCode;
use std::thread;

use periplus::checkpoint::FloatType;
use periplus::frames::{Clip, ClipOptions, FolderOptions, FolderSource, Resize};
use periplus::{Engine, SessionConfig, Weights, device};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [weights, left, right] = arguments.as_slice() else {
        return Err("give a safetensors file and two folders of pictures".into());
    };
    // A GPU if there is one and the program was built with --features cuda.
    let (device, reason) = device::best();
    if let Some(reason) = reason {
        eprintln!("computing on the CPU: {reason}");
    }
    let dtype = FloatType::suited_to(&device).into();
    let engine = Engine::load(&Weights::open(weights.as_ref(), None)?, dtype, &device)?;
    thread::scope(|scope| {
        let cameras = [left, right].map(|folder| scope.spawn(|| stream(&engine, folder.as_ref())));
        for camera in cameras {
            camera.join().map_err(|_| "a camera's thread panicked")??;
        }
        Ok(())
    })
}

fn stream(engine: &Engine, folder: &Path) -> Result<(), Failure> {
    let mut session = engine.session(SessionConfig::from(engine.config()))?;
    let mut frames = 0;
    let preprocess = engine.preprocess(Resize::Crop)?;
    let source = FolderSource::open(folder, &FolderOptions::default())?;
    for frame in Clip::start(source, preprocess, &ClipOptions::default())? {
        frames += session.push(frame?)?.len();
    }
    frames += session.finish()?.len();
    println!("{}: {frames} frames, {:?}", folder.display(), session.stats());
    Ok(())
}
