; Intrinsics and attributes as a tensor compiler writes them: launch bounds, fast-math flags, address spaces, vectors.
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

@tile = internal addrspace(3) global [1024 x float] undef, align 16
@staging = external addrspace(3) global [0 x i8], align 16

define ptx_kernel void @fused(ptr addrspace(1) noalias readonly align 16 %in, ptr addrspace(1) noalias align 16 %out) #0 {
  %t = call range(i32 0, 1024) i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %row = shl nsw i32 %b, 10
  %i = or disjoint i32 %row, %t
  %p = getelementptr inbounds <4 x float>, ptr addrspace(1) %in, i32 %i
  %v = load <4 x float>, ptr addrspace(1) %p, align 16
  %s = call reassoc float @llvm.vector.reduce.fadd.v4f32(float 0.0, <4 x float> %v)
  %e = call fast float @llvm.nvvm.ex2.approx.f(float %s)
  %w = call float @llvm.maximum.f32(float %e, float 0.0)
  %q = getelementptr inbounds [1024 x float], ptr addrspace(3) @tile, i32 0, i32 %t
  store float %w, ptr addrspace(3) %q, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %x = xor i32 %t, 1
  %r = getelementptr inbounds [1024 x float], ptr addrspace(3) @tile, i32 0, i32 %x
  %o = load float, ptr addrspace(3) %r, align 4
  %m = fmul contract float %o, %w
  %a = fadd contract float %m, %s
  %z = getelementptr inbounds float, ptr addrspace(1) %out, i32 %i
  store float %a, ptr addrspace(1) %z, align 4
  ret void
}

define ptx_kernel void @staged(ptr addrspace(1) %out, i32 %n) #1 {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr half, ptr addrspace(3) @staging, i32 %t
  %h = load half, ptr addrspace(3) %p
  %sum = call i32 @llvm.nvvm.redux.sync.add(i32 %t, i32 -1)
  %f = uitofp i32 %sum to half
  %g = call half @llvm.fma.f16(half %h, half %f, half 1.0)
  %q = getelementptr half, ptr addrspace(1) %out, i32 %n
  store half %g, ptr addrspace(1) %q
  ret void
}

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare float @llvm.vector.reduce.fadd.v4f32(float, <4 x float>)
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.maximum.f32(float, float)
declare half @llvm.fma.f16(half, half, half)
declare i32 @llvm.nvvm.redux.sync.add(i32, i32)
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)

attributes #0 = { nounwind "nvvm.reqntid"="1024" }
attributes #1 = { nounwind "nvvm.maxntid"="128" "nvvm.minctasm"="8" }
