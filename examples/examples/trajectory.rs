//! Trajectory: streams a folder of pictures and prints the camera's position for each frame.
//!
//! `cargo run --release -p periplus-examples --example trajectory -- FRAMES WEIGHTS.safetensors`

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use periplus::checkpoint::FloatType;
use periplus::frames::{Clip, ClipOptions, FolderOptions, FolderSource, Resize};
use periplus::{Engine, FrameOutput, Outputs, SessionConfig, Weights, device};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [frames, weights] = arguments.as_slice() else {
        return Err("give a folder of pictures and a safetensors file".into());
    };
    // A GPU if there is one and the program was built with --features cuda.
    let (device, reason) = device::best();
    if let Some(reason) = reason {
        eprintln!("computing on the CPU: {reason}");
    }
    let dtype = FloatType::suited_to(&device).into();
    let engine = Engine::load(&Weights::open(weights.as_ref(), None)?, dtype, &device)?;
    let mut session = engine.session(SessionConfig { outputs: Outputs::Poses, ..engine.config().into() })?;
    let preprocess = engine.preprocess(Resize::Crop)?;
    let source = FolderSource::open(frames, &FolderOptions::default())?;
    for frame in Clip::start(source, preprocess, &ClipOptions::default())? {
        print(&session.push(frame?)?)?;
    }
    print(&session.finish()?)?;
    Ok(())
}

fn print(outputs: &[FrameOutput]) -> io::Result<()> {
    for output in outputs {
        let position = output.camera_to_world.translation.vector;
        writeln!(io::stdout(), "{:5}  {:9.4} {:9.4} {:9.4}", output.index, position.x, position.y, position.z)?;
    }
    Ok(())
}
