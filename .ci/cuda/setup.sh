#!/usr/bin/env bash
# Installs a CUDA 13.0 toolkit for building (no GPU, no driver) from PyPI wheels.
#
#   setup.sh PREFIX            installs to PREFIX; safe to repeat
#   . PREFIX/env.sh            sets the variables that cargo and nvcc need
#
# -lcuda, -lcublas, -lcublasLt, -lcurand and -lnvrtc link to static archives of stubs made here. A stub opens the real
# library at the first call and jumps to it; without the library it returns an error code. So one binary runs on every
# machine, with a GPU or without. symbols.txt lists the functions: those that cudarc declares (extern "C" in
# src/{driver,cublas,cublaslt,curand,nvrtc}/sys/mod.rs).
#
# Needs python3 with pip, gcc and ar; x86-64 only. Uses pip's configured index.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=${1:?usage: setup.sh PREFIX}
symbols=$here/symbols.txt
python=${PYTHON:-python3}

build_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
              nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)

mkdir -p "$prefix"; prefix=$(cd "$prefix" && pwd)
tk=$prefix/nvidia/cu13

stamp=$prefix/.wheels # the list of installed wheels
if [ "$(cat "$stamp" 2>/dev/null || true)" != "${build_wheels[*]}" ]; then
  fresh=$(mktemp -d "$prefix/.tmp.XXXXXX")
  PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --no-deps --no-compile --target "$fresh" "${build_wheels[@]}"
  chmod 755 "$fresh"; cp -a "$fresh/." "$prefix/"; rm -rf "$fresh"
  printf '%s' "${build_wheels[*]}" > "$stamp"
fi

ln -sfn lib "$tk/lib64"                       # nvcc.profile and cudaforge look in lib64
test -x "$tk/bin/nvcc" && test -x "$tk/nvvm/bin/cicc"

rm -rf "$prefix/link"; mkdir -p "$prefix/link"
soname() { case $1 in cuda) echo libcuda.so.1;; curand) echo libcurand.so.10;; *) echo "lib$1.so.13";; esac; }
# What a stub returns when its library is missing. It must be a value of the library's own enum, because cudarc converts
# it to a Rust enum: CUDA_ERROR_STUB_LIBRARY, *_STATUS_NOT_INITIALIZED, NVRTC_ERROR_INTERNAL_ERROR.
absent() { case $1 in cuda) echo 34;; curand) echo 101;; nvrtc) echo 11;; *) echo 1;; esac; }

make_lazy() { # LIB: static archive; each symbol jumps through a slot filled by dlsym at first use
  local so; so=$(soname "$1")
  awk -v l="$1" -v so="$so" '
    $1==l { s[n++]=$2 }
    END {
      print ".intel_syntax noprefix"
      for (i=0;i<n;i++) {
        printf ".section .text.%s,\"ax\",@progbits\n.globl %s\n.type %s,@function\n%s:\n", s[i],s[i],s[i],s[i]
        printf "  endbr64\n  mov r11, [rip+.Lslots_%s+%d]\n  test r11,r11\n  je 1f\n  jmp r11\n1: mov r11d, %d\n  jmp .Lresolve_%s\n", l, 8*i, i, l
        printf ".size %s,.-%s\n", s[i], s[i]
      }
      printf ".text\n.Lresolve_%s:\n", l
      print "  push rbp\n  mov rbp,rsp\n  push rdi\n  push rsi\n  push rdx\n  push rcx\n  push r8\n  push r9\n  push rax\n  push r11"
      print "  sub rsp,128\n  and rsp,-16"
      for (i=0;i<8;i++) printf "  movups [rsp+%d], xmm%d\n", 16*i, i
      printf "  mov edi, r11d\n  call __cudatk_lazy_%s\n  mov r11, rax\n", l
      for (i=0;i<8;i++) printf "  movups xmm%d, [rsp+%d]\n", i, 16*i
      print "  lea rsp,[rbp-64]\n  add rsp,8\n  pop rax\n  pop r9\n  pop r8\n  pop rcx\n  pop rdx\n  pop rsi\n  pop rdi\n  pop rbp\n  jmp r11"
      printf ".bss\n.globl __cudatk_slots_%s\n.hidden __cudatk_slots_%s\n.align 8\n__cudatk_slots_%s:\n.Lslots_%s: .zero %d\n", l,l,l,l,8*n
      print ".section .note.GNU-stack,\"\",@progbits"
    }' "$symbols" > "$prefix/link/$1.s"
  { echo '#include <dlfcn.h>'
    echo "extern void *__cudatk_slots_$1[]; __attribute__((visibility(\"hidden\"))) void *__cudatk_lazy_$1(unsigned i);"
    echo "static const char *const names[]={"; awk -v l="$1" '$1==l {print "\"" $2 "\","}' "$symbols"; echo '};'
    echo "static int absent(void){return $(absent "$1");}"
    echo "void *__cudatk_lazy_$1(unsigned i){"
    echo '  static void *handle;'
    echo "  if(!handle) handle=dlopen(\"$so\",RTLD_NOW|RTLD_GLOBAL);"
    echo '  void *f=handle?dlsym(handle,names[i]):0;'
    echo '  if(!f) return (void*)absent;'
    echo "  __atomic_store_n(&__cudatk_slots_$1[i],f,__ATOMIC_RELEASE); return f; }"
  } > "$prefix/link/$1.c"
  gcc -c -fPIC -O1 -o "$prefix/link/$1.s.o" "$prefix/link/$1.s"
  gcc -c -fPIC -O1 -o "$prefix/link/$1.c.o" "$prefix/link/$1.c"
  ar rcs "$prefix/link/lib$1.a" "$prefix/link/$1.s.o" "$prefix/link/$1.c.o"
  rm "$prefix/link/$1".{s,c,s.o,c.o}
}
for l in cuda cublas cublasLt curand nvrtc; do make_lazy "$l"; done
ln -sfn "$tk/lib/libcudart_static.a" "$prefix/link/libcudart.a"

cat > "$prefix/env.sh" <<EOF
export CUDA_HOME="$tk" CUDA_PATH="$tk" CUDA_ROOT="$tk" CUDA_TOOLKIT_ROOT_DIR="$tk"
export NVCC="$tk/bin/nvcc"
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-80}"
export CUDARC_CUDA_VERSION=13000
# By default, cudaforge (which builds Candle's kernels) uses half of the cores. Compressed machine code halves the
# binary.
export CUDAFORGE_THREADS="\${CUDAFORGE_THREADS:-$(nproc)}"
case " \${NVCC_APPEND_FLAGS:-} " in *compress-mode*) ;; *) export NVCC_APPEND_FLAGS="\${NVCC_APPEND_FLAGS:+\$NVCC_APPEND_FLAGS }--compress-mode=size" ;; esac
case ":\$PATH:" in *":$tk/bin:"*) ;; *) export PATH="$tk/bin:\$PATH" ;; esac
case ":\${LIBRARY_PATH:-}:" in *":$prefix/link:"*) ;; *) export LIBRARY_PATH="$prefix/link\${LIBRARY_PATH:+:\$LIBRARY_PATH}" ;; esac
EOF
echo "CUDA build tree: $tk ($("$tk/bin/nvcc" --version | sed -n 's/.*release/release/p')); now: . $prefix/env.sh"
