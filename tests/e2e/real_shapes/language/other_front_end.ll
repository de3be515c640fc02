; What other front ends write: no layout, kernels marked by metadata, quoted and unnamed names, text that looks like IR.
target triple = "nvptx64-nvidia-cuda"

%"struct.pair (odd)" = type { i32, float }
%1 = type { %"struct.pair (odd)", [2 x i64] }

@0 = private unnamed_addr constant [25 x i8] c"define void @no() { } ; \00"
@"a name" = internal addrspace(3) global [32 x float] undef, align 16

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()

define internal float @"helper of 1"(ptr %p) {
  %q = getelementptr %1, ptr %p, i64 0, i32 0, i32 1
  %v = load float, ptr %q
  ret float %v
}

define void @letters(ptr addrspace(1) %out) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %w = and i32 %i, 15
  %p = getelementptr [25 x i8], ptr @0, i32 0, i32 %w
  %c = load i8, ptr %p
  %q = getelementptr i8, ptr addrspace(1) %out, i32 %i
  store i8 %c, ptr addrspace(1) %q
  ret void
}

define void @pairs(ptr %in, ptr addrspace(1) %out) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr %1, ptr %in, i32 %i
  %v = call float @"helper of 1"(ptr %p)
  %w = and i32 %i, 31
  %s = getelementptr [32 x float], ptr addrspace(3) @"a name", i32 0, i32 %w
  store float %v, ptr addrspace(3) %s
  %back = sub i32 31, %w
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %t = getelementptr [32 x float], ptr addrspace(3) @"a name", i32 0, i32 %back
  %u = load float, ptr addrspace(3) %t
  %q = getelementptr float, ptr addrspace(1) %out, i32 %i
  store float %u, ptr addrspace(1) %q
  ret void
}

declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)

!nvvm.annotations = !{!0, !1, !2}
!0 = !{ptr @letters, !"kernel", i32 1}
!1 = !{ptr @pairs, !"kernel", i32 1}
!2 = !{ptr @pairs, !"maxntidx", i32 128}
